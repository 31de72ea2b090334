"""Table `markers`: numbers without a gap whoever writes them, exact ranges, and pruning."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from semel.errors import ConfigurationError
from semel.ledger import Ledger, LedgerClient, MarkerHead, MarkerRow, check_ledger, open_store
from semel.ledger.payloads import DamagedRow
from semel.ledger.store import Delete, Put, Store
from semel.streams import Markers, MarkerTaken
from semel.verify.simulator.cluster import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = (
        MemoryStore()
        if request.param == "memory"
        else open_store(f"sqlite:///{tmp_path}/markers.db")
    )
    with closing(made):
        yield made


def row(number: int) -> MarkerRow:
    positions: dict[str, int | str] = {"orders/0": number * 10, "orders/1": '{"logOffset":3}'}
    return MarkerRow(positions, 1.5, 100.0, "a marker every 1.5 s", 1_700_000_000.0 + number)


def markers(store: Store, stream: str = "orders") -> Markers:
    return Markers(LedgerClient(store, stream), stream)


def filled(store: Store, count: int) -> Markers:
    made = markers(store)
    newest = made.newest()
    for number in range(1, count + 1):
        newest = made.append(newest, row(number), MarkerHead(0, {"rate": float(number)}))
    return made


@pytest.mark.rows("O1", "O22")
def test_markers_have_consecutive_numbers_and_say_where_every_input_stands(store: Store) -> None:
    found = filled(store, 3)
    assert found.newest().number == 3
    assert found.newest().head.clock == {"rate": 3.0}
    assert found.read(2) == row(2)
    assert found.read(4) is None
    assert found.between(1, 3) == [(2, row(2)), (3, row(3))]
    assert check_ledger(store)[1] == []


@pytest.mark.rows("O1")
def test_two_writers_cannot_both_write_one_number(store: Store) -> None:
    one, other = filled(store, 1), markers(store)
    before = other.newest()
    one.append(one.newest(), row(2))
    with pytest.raises(MarkerTaken, match="another writer set marker 2 first"):
        other.append(before, replace(row(2), reason="of the other"))
    assert one.read(2) == row(2)
    assert other.append(other.newest(), row(3)).number == 3


def test_writers_of_one_stream_in_many_threads_leave_no_gap_and_no_double(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/markers.db")) as store:

        def write() -> None:
            mine, written = markers(store), 0
            while written < 10:
                try:
                    mine.append(mine.newest(), row(1))
                except MarkerTaken:
                    continue
                written += 1

        writers = [threading.Thread(target=write) for _ in range(4)]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        assert [number for number, _ in markers(store).between(0, 40)] == list(range(1, 41))
        assert markers(store).newest().number == 40


@pytest.mark.rows("A1", "A11")
def test_a_range_that_was_removed_or_does_not_exist_yet_says_so(store: Store) -> None:
    found = filled(store, 12)
    assert found.prune(below=9) == 8
    assert found.prune(below=9) == 0
    assert [number for number, _ in found.between(8, 12)] == [9, 10, 11, 12]
    with pytest.raises(ConfigurationError, match="has no marker 8 any more"):
        found.read(8)
    with pytest.raises(ConfigurationError, match="has no marker 5 any more"):
        found.between(4, 10)
    with pytest.raises(ConfigurationError, match="no marker 13 yet: the newest one is 12"):
        found.between(10, 13)
    assert found.prune(below=100) == 3, "the newest marker stays"
    assert check_ledger(store)[1] == []


def test_a_planned_marker_removes_the_oldest_in_the_same_commit(store: Store) -> None:
    found = filled(store, 3)
    newest, requirements, updates = found.plan(
        found.newest(), row(4), MarkerHead(0, {"rate": 4.0}), keep=2
    )
    store.commit(requirements, updates)
    assert newest == found.newest()
    assert [number for number, _ in found.between(2, 4)] == [3, 4]
    with pytest.raises(ConfigurationError, match="marker 2 any more"):
        found.read(2)


def test_the_markers_of_two_streams_are_apart_also_when_one_name_begins_with_the_other(
    store: Store,
) -> None:
    filled(store, 2)
    other = markers(store, "orders/0")
    other.append(other.newest(), row(7))
    assert markers(store).newest().number == 2
    assert other.between(0, 1) == [(1, row(7))]


def test_the_ledger_lists_markers_and_the_row_of_their_stream(store: Store) -> None:
    filled(store, 2)
    ledger = Ledger(store)
    found = dict(ledger.rows("markers"))
    assert list(found) == ["orders", "orders/a1", "orders/a2"]
    assert found["orders"]["number"] == 2
    assert found["orders/a2"]["reason"] == "a marker every 1.5 s"
    assert found["orders/a2"]["positions"]["orders/0"] == 20
    assert ledger.count("markers") == 3


def test_a_missing_marker_is_found_by_the_check_of_the_ledger(store: Store) -> None:
    found = filled(store, 4)
    store.commit([], [Delete(found._key(3))])
    assert "a marker between two others is missing" in str(check_ledger(store)[1])
    store.commit([], [Delete(found._key(4))])
    assert "its newest marker is not the one that it names" in str(check_ledger(store)[1])


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ('{"number":"two"}', "the field 'number' must be an integer"),
        ('{"number":2}', "the field 'clock' is missing"),
    ],
)
def test_a_damaged_row_of_a_stream_is_named_and_nothing_is_guessed(
    store: Store, damage: str, what: str
) -> None:
    found = filled(store, 2)
    store.commit([], [Put(found._head, damage)])
    with pytest.raises(DamagedRow, match=what):
        found.newest()


def test_positions_are_integers_or_texts(store: Store) -> None:
    found = filled(store, 1)
    text = row(1).dump().replace('"orders/0":10', '"orders/0":[1]')
    store.commit([], [Put(found._key(1), text)])
    with pytest.raises(DamagedRow, match="'positions' must be an object of integers and texts"):
        found.read(1)
