"""A page of the console reads a bounded number of rows, whatever the ledger holds.

`SEMEL_LARGE_LEDGER=1000000` generates that many parked events; the times are printed, and no test
fails because of them.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from semel.ledger import Ledger, open_store
from semel.ledger.store.commit import Key, Payload, Requirement, Store, Update
from semel.operate import (
    ParkedChoice,
    find_event,
    read_parked_at,
    read_parked_page,
    read_pipeline_detail,
    read_pipelines_page,
    resolve_parked_at,
)
from semel.protocol import ParkedState
from support.console.generated_ledger import GeneratedPipeline
from support.console.running_console import Console
from support.servers.postgres import PostgresServer

PARKED = int(os.environ.get("SEMEL_LARGE_LEDGER", "12000"))
MINIBATCHES = 10_000
PIPELINES = 300


class CountingStore:
    """A real store that counts the rows that it returns, by table."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.rows: Counter[str] = Counter()

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        self.rows.update(each.table for each in keys)
        return self._store.read(keys)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        for row in self._store.scan(table, prefix, after=after, limit=limit):
            self.rows[table] += 1
            yield row

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        self._store.commit(requirements, updates)

    def close(self) -> None:
        self._store.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Very many parked events, many minibatches and batch jobs, and a pipeline never pruned."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('large')}/ledger.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create())
    store = open_store(url)
    made = GeneratedPipeline(store, now=time.time(), batch=MINIBATCHES)
    made.register()
    made.put(made.pacing())
    made.put(made.many_parked(PARKED))
    unpruned = GeneratedPipeline(store, "unpruned", now=made.now, batch=MINIBATCHES)
    unpruned.register()
    unpruned.put(unpruned.old_partitions(MINIBATCHES))
    unpruned.put(unpruned.many_parked(3_000, ParkedState.DELIVERED))
    for number in range(PIPELINES):
        GeneratedPipeline(store, f"job@{number:04}", now=made.now, partitions=1).register()
    store.close()
    return url


@pytest.fixture
def counting(large: str) -> Iterator[tuple[Ledger, CountingStore]]:
    store = CountingStore(open_store(large))
    yield Ledger(store), store
    store.close()


def test_every_answer_reads_a_bounded_number_of_rows(
    counting: tuple[Ledger, CountingStore],
) -> None:
    ledger, store = counting
    last = f"c{PARKED - 1:07}"
    page = read_parked_page(ledger, ParkedChoice("charges", "bank", entity=last))
    [event] = page.events
    status = read_pipeline_detail(ledger, "charges").overview.status
    answers: dict[str, tuple[int, Callable[[], object]]] = {
        "pipelines": (10_000, lambda: read_pipelines_page(ledger)),
        "pipeline": (5_000, lambda: read_pipeline_detail(ledger, "charges")),
        "pipeline, unpruned": (5_000, lambda: read_pipeline_detail(ledger, "unpruned")),
        "parked": (2_200, lambda: read_parked_page(ledger, ParkedChoice())),
        "parked, none fits": (2_200, lambda: read_parked_page(ledger, ParkedChoice(why="nothing"))),
        "parked, one entity": (
            200,
            lambda: read_parked_page(ledger, ParkedChoice(entity=last, pipeline="charges")),
        ),
        "event": (10, lambda: read_parked_at(ledger, event.key.key)),
        "find": (200, lambda: find_event(ledger, last, ["5"], "charges")),
        "resolve": (
            20,
            lambda: resolve_parked_at(
                ledger, event.key.key, "resend", by="a", reason="b", status=status
            ),
        ),
    }
    for name, (most, answer) in answers.items():
        store.rows.clear()
        began = time.perf_counter()
        answer()
        took_ms = (time.perf_counter() - began) * 1000
        print(f"{name}: {store.rows.total():,} rows, {took_ms:.0f} ms")
        assert store.rows.total() <= most, (name, store.rows)
        assert store.rows["parked"] <= 4_500, (name, store.rows)


def test_counts_of_a_large_ledger_are_least_numbers(
    counting: tuple[Ledger, CountingStore],
) -> None:
    detail = read_pipeline_detail(counting[0], "charges")
    [sink] = detail.overview.status.sinks
    assert {"parked", "heads"} <= {*sink.cut}
    assert 0 < sink.in_doubt <= 1_000
    assert sink.delivered is None
    assert sink.transmitted is None
    assert "or more events" in detail.overview.advice[0].what


def test_pages_follow_each_other_to_the_end_without_a_gap(
    counting: tuple[Ledger, CountingStore],
) -> None:
    ledger, _ = counting
    wanted = {f"c{number:07}" for number in range(400)}
    seen: list[str] = []
    after: str | None = ""
    while after is not None and len(seen) < len(wanted):
        page = read_parked_page(ledger, ParkedChoice("charges"), after)
        seen += [each.row.entity for each in page.events]
        assert page.next_after is None or page.next_after > after
        after = page.next_after
    assert {*seen} == wanted
    assert len(seen) == len(wanted)
    names: list[str] = []
    after = ""
    while after is not None:
        found = read_pipelines_page(ledger, after)
        names += [each.status.pipeline for each in found.pipelines]
        after = found.next_after
    assert names == sorted(
        [*(f"job@{number:04}" for number in range(PIPELINES)), "charges", "unpruned"]
    )


def test_pages_over_http_are_bounded_and_timed(large: str) -> None:
    paths = {
        "pipelines": "/",
        "pipeline": "/pipeline?name=charges",
        "parked": "/parked",
        "parked, all": "/parked?states=all&events=1000000",
        "parked, none fits": "/parked?why=nothing+fits",
        "find": f"/find?pipeline=charges&entity=c{PARKED - 1:07}&event={PARKED - 1}",
    }
    with Console(large) as console:
        for name, path in paths.items():
            times, sizes = [], []
            for _ in range(5):
                began = time.perf_counter()
                answer = console.get(path)
                times.append((time.perf_counter() - began) * 1000)
                sizes.append(len(answer.body))
                assert answer.status == 200
            load = os.getloadavg()[0]
            print(
                f"{name}: {min(times):.0f}..{max(times):.0f} ms, {max(sizes):,} bytes, {PARKED:,} "
                f"parked, at load {load:.1f}"
            )
            assert max(sizes) < 200_000
        page = console.text("/parked", {"states": "all"})
        assert len(re.findall('class="event"', page)) == 50
        assert 'rel="next"' in page
        assert "1,000+" in console.text("/pipeline", {"name": "charges"})
