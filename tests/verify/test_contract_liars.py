"""A sink that lies is caught, and the case that catches it is named."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semel.protocol import Capability, OnDoubt
from semel.sinks import Function
from semel.verify.contract.cases import CASES, ContractCase
from semel.verify.contract.faults import SinkFault, What, Where
from semel.verify.contract.forkserver import ForkServer
from semel.verify.contract.sandbox import Sandbox
from semel.verify.contract.scenarios import Scenario, Scene
from semel.verify.contract.suite import Arrived, CaseResult, Earned, Subject, Suite, earned
from semel.verify.demo.charge_server import ChargeServer
from support.contract_sinks import faulty, forgetting, mistakes
from support.contract_sinks.honest import Asking, Box, Opaque, arrived, function

T, S = Capability.TRANSACTIONAL, Capability.SEQUENCED
R, P = Capability.REPEATABLE, Capability.PROBING
ANY = Capability.OPAQUE

pytestmark = pytest.mark.rows("N10")

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer() as started:
        yield started


@pytest.fixture(scope="module")
def house() -> Iterator[ChargeServer]:
    with ChargeServer() as started:
        yield started


def play(fork_server: ForkServer, sink: Any, looks: Arrived, case: str) -> CaseResult:
    """Play one case of a suite, and look again as the whole suite does."""
    suite = Suite(Subject("liar", sink, looks), fork_server)
    [result] = suite.look_again([suite.run(BY_NAME[case])])
    return result


LIARS: list[tuple[type[Any], Capability, str, str]] = [
    (faulty.TwoTransactions, T, "mid-call", "duplicated: event"),
    (faulty.RowFirst, T, "mid-call", "lost: event"),
    (faulty.IgnoresLaterAttempts, T, "zombie", "not refused: attempt"),
    (faulty.IgnoresLaterAttempts, T, "two-alive", "not refused: attempt"),
    (faulty.IgnoresStart, T, "late-call", "duplicated: event"),
    (faulty.KeepsLastIds, T, "lost-checkpoint", "duplicated: event"),
    (faulty.ForgetsSortKey, T, "by-position", "duplicated: event"),
    (faulty.TellsNothing, T, "after-effect", "never completes"),
    (faulty.ForgetsSortKey, T, "resend", "duplicated: event"),
    (forgetting.IgnoresLoss, T, "lost-progress", "not noticed: call 1"),
    (forgetting.IgnoresLossOfAll, T, "lost-progress", "not noticed: call 1"),
    (forgetting.ForgetsNumberWhenTaken, T, "lost-progress", "never completes: Diverged"),
    (faulty.PassesOver, T, "refused", "its receipt delivers event"),
    (faulty.TurnsRound, T, "clean", "out of order: event"),
    (faulty.KeysInMemory, R, "after-effect", "duplicated: event"),
    (faulty.KeyOfAttempt, R, "after-effect", "duplicated: event"),
    (faulty.KeyFirst, R, "mid-call", "lost: event"),
    (faulty.BreaksOrder, R, "refused", "its receipt delivers event"),
    (faulty.ChunkKeys, R, "lost-checkpoint", "duplicated: event"),
    (faulty.LosesRefused, R, "refused", "lost: event 3"),
    (faulty.NeverArrived, P, "after-effect", "duplicated: event"),
    (faulty.NeverArrived, P, "reply-lost", "duplicated: event"),
    (faulty.NeverArrived, P, "zombie", "duplicated: event"),
    (faulty.NeverArrived, P, "by-position", "duplicated: event"),
    (faulty.RefusesOne, P, "refused", "must report whole chunks"),
    (faulty.AlwaysArrived, P, "after-intent", "lost: event"),
    (faulty.AlwaysArrived, P, "request-lost", "lost: event"),
    (faulty.StaleWriter, S, "zombie", "duplicated: event"),
    (faulty.NoEpoch, S, "two-alive", "not refused: attempt"),
    (faulty.AppendsSome, S, "refused", "must report whole chunks"),
    (faulty.TellsNoIds, S, "lost-checkpoint", "duplicated: event"),
    (faulty.TellsNoResends, S, "resend", "duplicated: event"),
    (faulty.Swallows, ANY, "session-closed", "lost: event"),
    (faulty.Drops, ANY, "clean", "lost: event 2"),
    (faulty.NoPairs, ANY, "clean", "not a Receipt"),
    (Opaque, P, "clean", "lacks methods"),
    (mistakes.ComparesAsText, T, "clean", "never completes: Fenced"),
    (mistakes.ComparesMinibatchesAsText, T, "clean", "never completes: Fenced"),
    (mistakes.ForgetsRefused, T, "refused", "lost: event 3"),
    (mistakes.FoldsCase, R, "odd-texts", "lost: event 1"),
    (mistakes.CutsKeys, R, "odd-texts", "lost: event 1"),
    (mistakes.TrimsKeys, R, "odd-texts", "lost: event 1"),
]


@pytest.mark.parametrize(
    ("session", "claims", "case", "told"),
    LIARS,
    ids=[f"{each[0].__name__}-{each[2]}" for each in LIARS],
)
def test_a_lie_is_found(
    fork_server: ForkServer,
    tmp_path: Path,
    session: type[Any],
    claims: Capability,
    case: str,
    told: str,
) -> None:
    path = str(tmp_path / "box.db")
    sink = Box(name="box", path=path, can=claims, session=session)
    result = play(fork_server, sink, lambda: arrived(path), case)
    said = [text for finding in result.findings for text in finding.what]
    assert not earned([result])
    assert any(told in text for text in said), said
    if told != "lacks methods":
        assert result.earned is Earned.NO


@pytest.mark.parametrize(
    ("session", "case", "told"),
    [
        (faulty.PutsAfterAll, "zombie", "not refused: attempt"),
        (faulty.PutsAfterAll, "zombie", "duplicated: event"),
        (faulty.LeavesThePlace, "lost-checkpoint", "duplicated: event"),
        (faulty.AddsToThePlace, "reply-lost", "duplicated: event"),
    ],
)
def test_a_place_that_is_not_written_whole_is_found(
    fork_server: ForkServer, tmp_path: Path, session: type[Any], case: str, told: str
) -> None:
    path = str(tmp_path / "box.db")
    sink = Box(name="box", path=path, can=R, whole=True, session=session)
    result = play(fork_server, sink, lambda: arrived(path), case)
    said = [text for finding in result.findings for text in finding.what]
    assert result.earned is Earned.NO
    assert any(told in text for text in said), said


@pytest.mark.parametrize("case", ["after-effect", "zombie"])
def test_a_probe_that_lies_is_found(fork_server: ForkServer, tmp_path: Path, case: str) -> None:
    path = str(tmp_path / "box.db")
    sink = function(path, on_doubt=OnDoubt.PROBE, probe=faulty.NeverSaw())
    result = play(fork_server, sink, lambda: arrived(path), case)
    assert result.earned is Earned.NO
    assert "duplicated: event" in result.findings[0].what[0]


def test_what_arrives_twice_is_no_late_call_of_a_zombie(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    path = str(tmp_path / "box.db")
    sink = Function(
        name="box",
        function=faulty.WritesTwice(path),
        window=3,
        on_doubt=OnDoubt.PROBE,
        probe=Asking(path),
    )
    result = play(fork_server, sink, lambda: arrived(path), "two-alive")
    assert result.earned is Earned.NO


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (faulty.RetriesInside, "duplicated: event"),
        (faulty.CallsUnknownNotDelivered, "duplicated: event"),
        (faulty.CallsUnknownRejected, "was rejected, but arrived"),
    ],
)
def test_a_function_that_takes_unknown_for_something_else_is_found(
    fork_server: ForkServer, house: ChargeServer, function: type[faulty.Charging], told: str
) -> None:
    sink = Function(name="charge", function=function(house.url))
    result = play(
        fork_server,
        sink,
        lambda: [(charge.entity, charge.event) for charge in house.charges()],
        "connection-cut",
    )
    said = [text for finding in result.findings for text in finding.what]
    assert result.earned is Earned.NO
    assert any(told in text for text in said), said


def test_an_honest_function_over_a_connection_is_not_accused(
    fork_server: ForkServer, house: ChargeServer
) -> None:
    sink = Function(name="charge", function=faulty.Charging(house.url))
    result = play(
        fork_server,
        sink,
        lambda: [(charge.entity, charge.event) for charge in house.charges()],
        "connection-cut",
    )
    assert (result.earned, result.findings) == (Earned.YES, ())
    assert result.in_doubt


# -- what cannot be known


def test_a_sink_that_cannot_travel_is_unknown(fork_server: ForkServer) -> None:
    sink = Function(name="here", function=lambda _: None)
    result = play(fork_server, sink, list, "clean")
    assert result.earned is Earned.UNKNOWN
    assert "cannot be pickled" in result.findings[0].what[0]


def test_a_destination_that_is_away_is_unknown(fork_server: ForkServer, tmp_path: Path) -> None:
    path = str(tmp_path / "no such folder" / "box.db")
    sink = Box(name="box", path=path, can=T)
    result = play(fork_server, sink, list, "after-effect")
    assert result.earned is Earned.UNKNOWN
    assert "it does not work when nothing goes wrong: NotDelivered" in result.findings[0].what[0]


def test_a_row_without_its_number_works_for_nobody(fork_server: ForkServer, tmp_path: Path) -> None:
    path = str(tmp_path / "box.db")
    sink = Box(name="box", path=path, can=T, session=forgetting.ForgetsNumber)
    result = play(fork_server, sink, lambda: arrived(path), "lost-progress")
    assert not earned([result])
    assert "it does not work when nothing goes wrong: Diverged" in result.findings[0].what[0]


@pytest.mark.parametrize("looks", [lambda: [1, 2], lambda: [("a", 1, 2)], lambda: None])
def test_what_arrived_in_no_pairs_is_unknown(
    fork_server: ForkServer, tmp_path: Path, looks: Arrived
) -> None:
    sink = Box(name="box", path=str(tmp_path / "box.db"))
    result = play(fork_server, sink, looks, "clean")
    assert result.earned is Earned.UNKNOWN
    assert "it must return pairs of entity and event id" in result.findings[0].what[0]


def test_what_arrives_after_a_case_was_judged_counts(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    path = str(tmp_path / "box.db")
    looked: list[int] = []

    def looks() -> list[tuple[str, str]]:
        looked.append(1)
        found = arrived(path)
        return found if len(looked) == 1 else [*found, found[-1]]

    sink = Box(name="box", path=path)
    suite = Suite(Subject("late", sink, looks), fork_server)
    before = suite.run(BY_NAME["clean"])
    [after] = suite.look_again([before])
    assert (before.earned, after.earned) == (Earned.YES, Earned.NO)
    assert "duplicated: event" in after.findings[0].what[0]


def test_out_of_order_and_unexpected_are_found(fork_server: ForkServer, tmp_path: Path) -> None:
    path = str(tmp_path / "box.db")
    sink = Box(name="box", path=path)
    turned = play(fork_server, sink, lambda: arrived(path)[::-1], "clean")
    assert "out of order: event" in turned.findings[0].what[0]

    def with_another() -> list[tuple[str, str]]:
        found = arrived(path)
        return [*found, (found[-1][0], "99")]

    other = play(fork_server, sink, with_another, "clean")
    assert any("event 99 of" in text for each in other.findings for text in each.what)


def test_what_never_happened_is_unknown(fork_server: ForkServer, tmp_path: Path) -> None:
    path = str(tmp_path / "box.db")
    suite = Suite(Subject("calm", Box(name="box", path=path), lambda: arrived(path)), fork_server)

    def act(fault: SinkFault, sandbox: Sandbox) -> None:
        sandbox.run(fault)
        sandbox.finish()

    def plays(_: Scene) -> Iterator[Scenario]:
        for what in (What.KILL_AFTER, What.SEVERED):
            fault = SinkFault(what, Where.CALL, 1_000)
            yield Scenario(str(fault), partial(act, fault))

    for case in (
        ContractCase("never", "too late", plays),
        ContractCase("empty", "no plays", lambda _: iter(())),
    ):
        result = suite.run(case)
        assert result.earned is Earned.UNKNOWN
        assert "the planned fault never happened" in result.findings[0].what[0]


def test_nothing_played_is_not_earned() -> None:
    assert not earned([])
    assert not earned([CaseResult("a", "b", Earned.NOTHING)])
    assert not earned([CaseResult("a", "b", Earned.YES), CaseResult("c", "d", Earned.UNKNOWN)])
    assert earned([CaseResult("a", "b", Earned.YES), CaseResult("c", "d", Earned.NOTHING)])


def test_every_case_is_in_the_document() -> None:
    text = (Path(__file__).parents[2] / "docs/verify-sink.md").read_text()
    for case in CASES:
        assert f"`{case.name}`" in text
