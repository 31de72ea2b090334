"""Ids that semel counts: increasing per entity, the same on a replay and across restarts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError
from semel.events import Counter
from semel.ledger.journal import COUNTERS, Journal
from semel.ledger.payloads import load_payload
from semel.sinks import Function, sink
from support.ledger.one_pipeline import LedgerWorld
from support.ledger.small_driver import SmallDriver

COUNTED = Counter(entity="c")
Ids = dict[str, list[int]]


def rows(*entities: str) -> pa.RecordBatch:
    return pa.record_batch({"c": pa.array(entities, pa.string())})


class Till:
    """Records the ids that it gets, by entity."""

    def __init__(self) -> None:
        self.got: Ids = defaultdict(list)

    def sink(self, window: int = 100) -> Function:
        def keep(event: Any) -> None:
            self.got[event.entity].append(event.id)

        return sink(window=window, name="till")(keep)


@pytest.mark.rows("S2", "S3")
def test_counted_ids_go_on_across_minibatches_and_partitions(world: LedgerWorld) -> None:
    till = Till()
    driver = SmallDriver(world, COUNTED, [till.sink()])
    driver.minibatch(0, {"0": rows("a", "a", "b"), "1": rows("z")})
    driver.minibatch(1, {"0": rows("b", "a"), "1": rows("z", "z")})
    assert till.got == {"a": [1, 2, 3], "b": [1, 2], "z": [1, 2, 3]}


@pytest.mark.rows("S2", "S3", "O16")
def test_a_replay_of_a_minibatch_gives_the_same_ids(world: LedgerWorld) -> None:
    driver = SmallDriver(world, COUNTED, [Till().sink()])
    driver.minibatch(0, {"0": rows("a", "b")})
    opening = driver.open(1)
    seen: list[object] = []
    for worker in (driver.journal, Journal(world.client)):
        driver.journal = worker
        stamped = COUNTED.stamper(
            "0", last=worker.restore(COUNTERS, "0", before=opening.row.serial).values
        ).stamp(rows("a", "a", "b"))
        seen.append(stamped.all_ids())
    assert seen == [[2, 3, 2], [2, 3, 2]]
    first = driver.deliver(opening, "0", [rows("a", "a", "b")])
    again = driver.deliver(opening, "0", [rows("a", "a", "b")])
    assert [load_payload(each.entries[0].text)["state"] for each in (*first, *again)] == [
        {"a": 3, "b": 2}
    ] * 2
    assert again[0].suppressed == 3
    driver.complete(opening, again)
    assert driver.journal.restore(COUNTERS, "0", before=9).values == {"a": 3, "b": 2}


@pytest.mark.rows("S2", "S3")
def test_a_replay_after_complete_takes_no_new_ids(world: LedgerWorld) -> None:
    till = Till()
    SmallDriver(world, COUNTED, [till.sink()], "n1").minibatch(0, {"0": rows("a", "b")})
    later = SmallDriver(world, COUNTED, [till.sink()], "n2")
    later.minibatch(0, {"0": rows("a", "b")})
    later.minibatch(1, {"0": rows("a")})
    assert till.got == {"a": [1, 2], "b": [1]}


@pytest.mark.rows("S3")
def test_counters_survive_a_restart_of_everything(tmp_path: Path) -> None:
    till = Till()
    for batch in range(4):
        world = LedgerWorld(tmp_path / "ledger.db")
        driver = SmallDriver(world, COUNTED, [till.sink()], f"n{batch}")
        driver.minibatch(batch, {"0": rows("a", "b", "a")})
        world.close()
    assert till.got == {"a": list(range(1, 9)), "b": list(range(1, 5))}


@pytest.mark.rows("S13", "S2")
def test_a_worker_with_a_stale_cache_repeats_no_id(world: LedgerWorld) -> None:
    till = Till()
    driver = SmallDriver(world, COUNTED, [till.sink()])
    one, other = Journal(world.client), Journal(world.another().client)
    for batch in range(40):
        driver.journal = other if batch in (0, 1, 17, 30) else one
        driver.minibatch(batch, {"0": rows("a", "b")})
    assert till.got == {"a": list(range(1, 41)), "b": list(range(1, 41))}


def test_counted_ids_refuse_a_lost_checkpoint(world: LedgerWorld) -> None:
    driver = SmallDriver(world, COUNTED, [Till().sink()])
    driver.minibatch(0, {"0": rows("a")})
    driver.minibatch(1, {"0": rows("a")})
    with pytest.raises(ConfigurationError, match="ids that semel counts do not survive"):
        driver.open(0, query="another checkpoint")


@pytest.mark.rows("S2", "S3")
@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_the_ids_of_an_entity_are_given_once_and_without_a_gap(
    tmp_path: Path, seed: int
) -> None:
    noise = Random(seed)
    till = Till()
    nonce = 0
    world = LedgerWorld(tmp_path / "ledger.db")
    driver = SmallDriver(world, COUNTED, [till.sink(window=noise.choice([1, 3, 100]))], "n0")
    expected: dict[str, int] = defaultdict(int)
    for batch in range(30):
        entities = noise.choices("abcde", k=noise.randrange(1, 12))
        for entity in entities:
            expected[entity] += 1
        while True:
            opening = driver.open(batch)
            reports = driver.deliver(opening, "0", [rows(*entities)])
            if noise.random() < 0.3:  # the task's result was lost, and Spark tries it again
                reports = driver.deliver(opening, "0", [rows(*entities)])
            fate = noise.random()
            if fate > 0.2:
                driver.complete(opening, reports)
            if fate > 0.4:
                break
            nonce += 1  # the driver died before Spark committed the batch
            driver = SmallDriver(world, COUNTED, [till.sink()], f"n{nonce}")
    world.close()
    assert till.got == {name: list(range(1, last + 1)) for name, last in expected.items()}, seed
