"""Many at once on one SQLite file, in threads and in processes of their own: the key decides."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from semel.errors import Fenced
from semel.events.event import Attempt
from support.ledger.one_pipeline import (
    LedgerWorld,
    claim_of,
    claim_of_one_process,
    request,
    run_of_one_process,
    settled,
    span,
    stream_row,
)

MANY = 8


def threads() -> Executor:
    return ThreadPoolExecutor(MANY)


def processes() -> Executor:
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(params=[threads, processes], ids=["threads", "processes"])
def many(request: pytest.FixtureRequest) -> Iterator[Executor]:
    make: Callable[[], Executor] = request.param
    with make() as executor:
        yield executor


def all_of(many: Executor, act: Callable[..., Any], *arguments: tuple[Any, ...]) -> list[Any]:
    futures = [many.submit(act, *each) for each in arguments]
    return [future.result(timeout=60) for future in futures]


@pytest.mark.rows("S7", "S19", "A17")
def test_of_many_attempts_at_a_partition_exactly_one_finds_it_new(
    world: LedgerWorld, many: Executor
) -> None:
    minibatches = world.begin()
    for batch in range(4):
        opening = minibatches.open(request(batch))
        path = str(world.path)
        found = all_of(many, claim_of_one_process, *((path, opening, task) for task in range(MANY)))
        outcomes = [outcome for _, outcome in found]
        assert outcomes.count("new") == 1
        assert set(outcomes) <= {"new", "pending", "fenced"}
        assert dict(found)[MANY - 1] != "fenced"
        assert stream_row(world, opening).attempt == Attempt(1, MANY - 1)
        world.store.commit([], [])
        minibatches.complete(opening, [_report(opening.standing("charge", "0").osn)], ["charge"])


def _report(osn: int) -> Any:
    from support.ledger.one_pipeline import report

    return report(MANY - 1, osn=osn + 3)


@pytest.mark.rows("A17")
def test_of_many_registrations_each_gets_a_number_of_its_own(
    world: LedgerWorld, many: Executor
) -> None:
    nonces = [f"n{at}" for at in range(2 * MANY)]
    runs = all_of(many, run_of_one_process, *((str(world.path), nonce) for nonce in nonces))
    assert sorted(runs) == list(range(1, 2 * MANY + 1))
    owner = world.owners.owner()
    assert owner is not None
    assert runs[nonces.index(owner.nonce)] == owner.run == 2 * MANY


@pytest.mark.rows("S19", "A17")
def test_while_attempts_replace_each_other_no_span_is_settled_by_two(world: LedgerWorld) -> None:
    opening = world.begin().open(request(0))

    def act(task: int) -> list[int]:
        """Settle spans one by one until another attempt has the partition; return those settled."""
        own = LedgerWorld(world.path)
        mine: list[int] = []
        try:
            hand = claim_of(own, opening, task)
            hand.claim(None)
            hand.spans()
            while hand.next_span < 60:
                number = hand.next_span
                made = span(number, number, number + 1, attempt=Attempt(1, task))
                hand.write(intended=made)
                hand.write(settled=settled(made))
                mine.append(number)
        except Fenced:
            pass
        finally:
            own.close()
        return mine

    with ThreadPoolExecutor(MANY) as executor:
        told = [number for mine in executor.map(act, range(MANY)) for number in mine]
    assert len(told) == len(set(told))
    assert stream_row(world, opening).attempt == Attempt(1, MANY - 1)
