"""A sink that lies is caught, and the case that catches it is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.protocol import Capability
from semel.sinks import Function
from semel.verify.contract import Arrived, Earned, Result, Subject, Suite, earned
from semel.verify.contract_cases import CASES
from semel.verify.contract_nursery import Nursery
from semel.verify.counting_house import CountingHouse
from verify import contract_liars as liars
from verify.contract_sinks import Box, Opaque, arrived

T, S = Capability.TRANSACTIONAL, Capability.SEQUENCED
R, P = Capability.REPEATABLE, Capability.PROBING
ANY = Capability.OPAQUE

pytestmark = pytest.mark.rows("N10")

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


@pytest.fixture(scope="module")
def house() -> Iterator[CountingHouse]:
    with CountingHouse() as started:
        yield started


def play(nursery: Nursery, sink: Any, looks: Arrived, case: str) -> Result:
    """Play one case of a suite, and look again as the whole suite does."""
    suite = Suite(Subject("liar", sink, looks), nursery)
    [result] = suite.look_again([suite.run(BY_NAME[case])])
    return result


LIARS: list[tuple[type[Any], Capability, str, str]] = [
    (liars.TwoTransactions, T, "mid-call", "duplicated: event"),
    (liars.RowFirst, T, "mid-call", "lost: event"),
    (liars.IgnoresLaterAttempts, T, "zombie", "not refused: attempt"),
    (liars.IgnoresLaterAttempts, T, "two-alive", "not refused: attempt"),
    (liars.IgnoresStart, T, "late-call", "duplicated: event"),
    (liars.KeepsLastIds, T, "lost-checkpoint", "duplicated: event"),
    (liars.TellsNothing, T, "after-effect", "does not come to its end"),
    (liars.ForgetsSortKey, T, "resend", "duplicated: event"),
    (liars.KeysInMemory, R, "after-effect", "duplicated: event"),
    (liars.KeyOfAttempt, R, "after-effect", "duplicated: event"),
    (liars.KeyFirst, R, "mid-call", "lost: event"),
    (liars.BreaksOrder, R, "refused", "its receipt delivers event"),
    (liars.ChunkKeys, R, "lost-checkpoint", "duplicated: event"),
    (liars.LosesRefused, R, "refused", "lost: event 3"),
    (liars.NeverArrived, P, "after-effect", "duplicated: event"),
    (liars.NeverArrived, P, "reply-lost", "duplicated: event"),
    (liars.AlwaysArrived, P, "after-intent", "lost: event"),
    (liars.AlwaysArrived, P, "request-lost", "lost: event"),
    (liars.StaleWriter, S, "zombie", "duplicated: event"),
    (liars.NoEpoch, S, "two-alive", "not refused: attempt"),
    (liars.TellsNoIds, S, "lost-checkpoint", "duplicated: event"),
    (liars.TellsNoResends, S, "resend", "duplicated: event"),
    (liars.Swallows, ANY, "session-closed", "lost: event"),
    (liars.Drops, ANY, "clean", "lost: event 2"),
    (liars.NoPairs, ANY, "clean", "not a Receipt"),
    (Opaque, P, "clean", "lacks methods"),
]


@pytest.mark.parametrize(
    ("session", "claims", "case", "told"),
    LIARS,
    ids=[f"{each[0].__name__}-{each[2]}" for each in LIARS],
)
def test_a_lie_is_found(
    nursery: Nursery,
    tmp_path: Path,
    session: type[Any],
    claims: Capability,
    case: str,
    told: str,
) -> None:
    path = str(tmp_path / "box.db")
    sink = Box(name="box", path=path, can=claims, session=session)
    result = play(nursery, sink, lambda: arrived(path), case)
    said = [text for finding in result.findings for text in finding.what]
    assert not earned([result])
    assert any(told in text for text in said), said
    if told != "lacks methods":
        assert result.earned is Earned.NO


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (liars.RetriesInside, "duplicated: event"),
        (liars.CallsUnknownNotDelivered, "duplicated: event"),
        (liars.CallsUnknownRejected, "was rejected, and arrived all the same"),
    ],
)
def test_a_function_that_takes_unknown_for_something_else_is_found(
    nursery: Nursery, house: CountingHouse, function: type[liars.Charging], told: str
) -> None:
    sink = Function(name="charge", function=function(house.url))
    result = play(
        nursery,
        sink,
        lambda: [(charge.entity, charge.event) for charge in house.charges()],
        "connection-cut",
    )
    said = [text for finding in result.findings for text in finding.what]
    assert result.earned is Earned.NO
    assert any(told in text for text in said), said


def test_an_honest_function_over_a_connection_is_not_accused(
    nursery: Nursery, house: CountingHouse
) -> None:
    sink = Function(name="charge", function=liars.Charging(house.url))
    result = play(
        nursery,
        sink,
        lambda: [(charge.entity, charge.event) for charge in house.charges()],
        "connection-cut",
    )
    assert (result.earned, result.findings) == (Earned.YES, ())
    assert result.in_doubt
