"""The client tries again while the store is away, and gives up after its patience."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from semel.errors import LedgerUnavailable
from semel.ledger.client import LedgerClient
from semel.ledger.keys import make_key
from semel.ledger.store.commit import Absent, Conflict, Equals, Key, Put
from semel.ledger.store.opening import open_store
from support.ledger.one_pipeline import LedgerWorld, PlannedClock

A = make_key("open", "a")
ONE, TWO, THREE = '{"n":1}', '{"n":2}', '{"n":3}'


def value(world: LedgerWorld, at: Key = A) -> str | None:
    return world.store.contents().get(at)


def test_a_commit_whose_request_was_lost_is_issued_again(world: LedgerWorld) -> None:
    world.store.lose_requests(3)
    world.client.commit([Absent(A)], [Put(A, ONE)])
    assert (len(world.store.asked), len(world.store.landed)) == (4, 1)
    assert value(world) == ONE


def test_a_commit_whose_reply_was_lost_finds_its_own_success(world: LedgerWorld) -> None:
    world.store.lose_replies()
    world.client.commit([Absent(A)], [Put(A, ONE)])
    assert len(world.store.landed) == 1
    assert value(world) == ONE


def test_a_success_that_was_overwritten_before_the_repeat_is_a_conflict(world: LedgerWorld) -> None:
    other = world.another()
    world.store.lose_reply_and_let_in(lambda: other.client.commit([Equals(A, ONE)], [Put(A, TWO)]))
    with pytest.raises(Conflict):
        world.client.commit([Absent(A)], [Put(A, ONE)])
    assert value(world) == TWO


def test_who_never_lost_a_reply_does_not_take_anothers_row_for_its_own(world: LedgerWorld) -> None:
    world.client.commit([Absent(A)], [Put(A, ONE)])
    with pytest.raises(Conflict):
        world.client.commit([Absent(A)], [Put(A, ONE)])


def test_a_conflict_is_told_at_once(world: LedgerWorld) -> None:
    with pytest.raises(Conflict):
        world.client.commit([Equals(A, ONE)], [Put(A, TWO)])
    assert len(world.store.asked) == 1
    assert not world.clock.slept


def test_patience_ends_and_names_what_to_do(world: LedgerWorld) -> None:
    world.store.lose_requests(10_000)
    with pytest.raises(LedgerUnavailable, match=r"'pay'.*restart the query"):
        world.client.commit([Absent(A)], [Put(A, ONE)])
    assert 30 <= sum(world.clock.slept) < 36
    assert max(world.clock.slept) <= 2.0


class Slow:
    """A store that is away, and is slow to report it."""

    def __init__(self, clock: PlannedClock, takes_s: float, why: str = "its disk is full") -> None:
        self._clock = clock
        self._takes_s = takes_s
        self._why = why
        self.tries = 0

    def _fail(self, *_: object, **__: object) -> None:
        self.tries += 1
        self._clock.slept.append(self._takes_s)
        raise LedgerUnavailable(self._why)

    read = scan = commit = _fail


ACTS: tuple[Callable[[LedgerClient], object], ...] = (
    lambda client: client.commit([Absent(A)], [Put(A, ONE)]),
    lambda client: client.read_one(A),
    lambda client: client.scan("open", ""),
)


@pytest.mark.parametrize(("takes_s", "tries"), [(8.0, 4), (23.0, 2), (100.0, 2)])
def test_the_time_that_tries_take_counts_as_waiting(takes_s: float, tries: int) -> None:
    for act in ACTS:
        clock = PlannedClock()
        store = Slow(clock, takes_s)
        with pytest.raises(LedgerUnavailable) as error:
            act(LedgerClient(store, "pay", clock))  # type: ignore[arg-type]
        assert store.tries == tries
        assert f"for {sum(clock.slept):.0f} s, in {tries} tries" in str(error.value)


def test_the_last_error_is_the_cause_and_is_in_the_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for act in ACTS:
        clock = PlannedClock()
        client = LedgerClient(Slow(clock, 1.0), "pay", clock)  # type: ignore[arg-type]
        caplog.clear()
        with pytest.raises(LedgerUnavailable, match=r"'pay'.*its disk is full.*restart") as error:
            act(client)
        assert str(error.value.__cause__) == "its disk is full"
        assert 4 <= caplog.text.count("its disk is full") <= 6, "the log says it while it waits"


def test_a_look_is_repeated_until_the_store_answers(tmp_path: Path) -> None:
    class Away:
        """A store that is away for the first looks."""

        def __init__(self, away: int) -> None:
            self._store = open_store(f"sqlite:///{tmp_path}/ledger.db")
            self._away = away

        def __getattr__(self, name: str) -> object:
            if self._away and name in ("read", "scan"):
                self._away -= 1
                raise LedgerUnavailable("away")
            return getattr(self._store, name)

    clock = PlannedClock()
    client = LedgerClient(Away(3), "pay", clock)  # type: ignore[arg-type]
    assert client.read_one(A) is None
    assert len(clock.slept) == 3
    with pytest.raises(LedgerUnavailable, match="away"):
        LedgerClient(Away(10_000), "pay", clock).scan("open", "")  # type: ignore[arg-type]


def test_several_rows_stand_only_together(world: LedgerWorld) -> None:
    b = make_key("open", "b")
    world.client.commit([Absent(A)], [Put(A, ONE)])
    assert world.client.stands([Put(A, ONE)])
    assert not world.client.stands([Put(A, ONE), Put(b, TWO)])
    assert not world.client.stands([Put(A, THREE)])
