"""Texts that no store can keep: ids that are not UTF-8, and reasons of 50 MB."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from delivery.test_finding import IDENTITIES
from semel.errors import ConfigurationError, Rejected
from semel.events import Given, Identity
from semel.ledger.rows import WORDS_MAX
from semel.ledger.verbs.divergence import judge_minibatch
from semel.ledger.verbs.parked import resolve_parked
from semel.protocol import Judgement, ParkedState
from support.destinations import Crash, Post, crash
from support.pipeline import EXACT, KINDS, World, events, world_like, world_of

TEXTS = Given(entity="c", event=("t",), order_by=("id",))
IN_ORDER = Given(entity="c", event=("id",), order_by=("t",))

COLUMNS: dict[str, tuple[Identity, str]] = {
    "an entity": (IDENTITIES["given"], "c"),
    "an entity of increasing ids": (IDENTITIES["increasing"], "c"),
    "an entity that is counted": (IDENTITIES["counter"], "c"),
    "an entity of positions": (IDENTITIES["position with entity"], "c"),
    "a topic": (IDENTITIES["position"], "topic"),
    "an id": (TEXTS, "t"),
    "an order": (IN_ORDER, "t"),
}


def not_utf8(column: str) -> pa.RecordBatch:
    batch = events("a1 b2 a3").append_column("t", pa.array(["x", "y", "z"]))
    values = [value.encode() for value in batch.column(column).to_pylist()]
    values[1] = b"\xff\xfe"
    array = pa.array(values, pa.binary()).view(pa.string())
    return batch.set_column(batch.schema.get_field_index(column), column, array)


@pytest.mark.parametrize("kind", ["opaque", "opaque batches", "transactional", "sequenced"])
@pytest.mark.parametrize("what", COLUMNS)
def test_an_id_that_is_not_utf_8_is_refused_with_its_column_before_anything_is_sent(
    what: str, kind: str
) -> None:
    identity, column = COLUMNS[what]
    world = world_like(kind, identity)
    opening = world.open(0)
    with pytest.raises(ConfigurationError, match=f"column '{column}' is a text that is not UTF-8"):
        world.task(opening, [not_utf8(column)])
    assert world.out.seen == ""


LONG = "x" * 50_000_000


def fails(error: Exception) -> Any:
    def reply(act: Any) -> Any:
        raise error

    return reply


def ledger_bytes(world: World) -> int:
    return sum(len(text) for text in world.store.memory.rows().values())


@pytest.mark.parametrize("error", [ValueError(LONG), Rejected(LONG)], ids=["doubt", "rejected"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reason_of_50_mb_is_cut(kind: str, error: Exception) -> None:
    world = world_like(kind)
    world.out.plan(fails(error))
    if kind in EXACT and not isinstance(error, Rejected):
        world.minibatch(0, "a1")
        assert world.parked() == []
        return
    world.minibatch(0, "a1")
    [(_, row)] = world.parked_rows()
    assert len(row.why) <= WORDS_MAX
    assert row.why.endswith(("more characters)", "x..."))
    assert ledger_bytes(world) < 20_000


def test_what_a_person_says_at_length_is_cut_too() -> None:
    world = world_of(Post())
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    [(at, _)] = world.parked_rows()
    for _ in range(2):
        resolve_parked(world.client, "out", at, ParkedState.DISCARDED, LONG, LONG)
        judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_REPLAYED, "ann", LONG)
    assert world.opened().version == 3  # once opened, once complete, judged once
    world.start()
    world.open(0)
    assert ledger_bytes(world) < 20_000


def test_an_attempt_that_gave_up_says_why_in_short() -> None:
    world = world_of(Post())
    world.out.plan(fails(ValueError(LONG)), crash)
    opening = world.open(0)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    assert ledger_bytes(world) < 20_000
