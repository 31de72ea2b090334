"""A page of the console, `semel status` and `semel parked ls` read a bounded number of rows,
whatever the ledger holds.

`SEMEL_SOAK=1` generates a million parked events; the times are printed, and no test fails because
of them.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from semel.ledger import Ledger, open_store
from semel.ledger.store.commit import Key, Payload, Put, Requirement, Store, Update
from semel.operate import (
    ParkedChoice,
    find_event,
    list_parked,
    read_parked_at,
    read_parked_page,
    read_pipeline_detail,
    read_pipelines_page,
    read_status,
    resolve_parked_at,
    waits_for_a_person,
)
from semel.protocol import ParkedState
from semel.verify.servers.postgres import PostgresServer
from support.command_line import semel
from support.console.generated_ledger import GeneratedPipeline
from support.console.running_console import Console

PARKED = 1_000_000 if os.environ.get("SEMEL_SOAK") == "1" else 12_000
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
        "status": (25_000, lambda: read_status(ledger, "charges", watch=False)),
        "parked ls": (9_000, lambda: list_parked(ledger)),
        "parked ls, none fits": (60_000, lambda: list_parked(ledger, "unpruned")),
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
        few = name not in ("status", "parked ls", "parked ls, none fits")
        assert store.rows["parked"] <= (4_500 if few else most), (name, store.rows)


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


def test_the_commands_answer_with_least_numbers_and_say_where_a_list_goes_on(
    large: str, counting: tuple[Ledger, CountingStore], capsys: pytest.CaptureFixture[str]
) -> None:
    def timed(*arguments: str) -> tuple[int, str, str]:
        began = time.perf_counter()
        answer = semel(capsys, *arguments, "--ledger", large)
        took_ms = (time.perf_counter() - began) * 1000
        with capsys.disabled():
            load = os.getloadavg()[0]
            print(f"\nsemel {' '.join(arguments)}: {took_ms:.0f} ms, {PARKED:,} parked, {load:.1f}")
        return answer

    status, out, err = timed("status", "charges")
    assert (status, err) == (0, "")
    assert "numbers with a + are least numbers" in out
    assert re.search(r"\d+\+ parked events wait for a person", out)
    status, out, _ = timed("status", "charges", "--json")
    [sink] = json.loads(out)["sinks"]
    assert {"parked", "heads"} <= {*sink["cut"]}
    assert timed("status", "charges", "--check")[0] == 1
    status, out, err = timed("parked", "ls", "charges", "--limit", "120", "--json")
    listed = [each["event"] for each in json.loads(out)]
    assert (status, len(listed)) == (0, 120)
    found = re.search(r"go on with --after (\S+),", err)
    assert found is not None
    status, out, _ = timed("parked", "ls", "charges", "--after", found[1], "--json")
    further = [each["event"] for each in json.loads(out)]
    assert len(further) == 1_000
    assert not {*listed} & {*further}
    page = [each.handle for each in read_parked_page(counting[0], ParkedChoice("charges")).events]
    assert listed[: len(page)] == page
    assert timed("parked", "ls")[0] == 0


def test_a_check_reads_on_until_it_finds_an_event_that_waits(
    counting: tuple[Ledger, CountingStore], tmp_path: Path
) -> None:
    """The first 10,000 rows are settled, and one behind them is not."""
    store = open_store(f"sqlite:///{tmp_path}/ledger.db")
    made = GeneratedPipeline(store, now=time.time(), batch=10)
    made.register()
    made.put(made.many_parked(10_500, ParkedState.DELIVERED))
    ledger = Ledger(store)
    found = [read_status(ledger, "charges", watch=False)]
    assert "parked" in found[0].sinks[0].cut
    assert not waits_for_a_person(ledger, found)
    [(at, text)] = store.scan("parked", "", after=last_but_one(store), limit=1)
    store.commit([], [Put(at, text.replace('"delivered"', '"held"'))])
    found = [read_status(ledger, "charges", watch=False)]
    assert found[0].waits_for_a_person == 0
    assert waits_for_a_person(ledger, found)
    store.close()


def last_but_one(store: Store) -> str:
    return [at.key for at, _ in store.scan("parked", "")][-2]


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
