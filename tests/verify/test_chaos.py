"""The parts of a chaos run that need no cluster: schedule, checker, network and report."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from semel.events.encoding import ascii_json
from semel.protocol import Capability, ParkedState
from semel.verify.chaos import (
    KINDS,
    ChaosReport,
    ParkedFact,
    ProducedEvent,
    SinkEvidence,
    SinkResult,
    TimedFault,
    WitnessedEffect,
    judge_sink,
    plan_faults,
    recovery_times,
    write_page,
)
from semel.verify.chaos.actions import ACTIONS
from semel.verify.servers.proxy import TcpProxy
from semel.verify.simulator import Assessment, Category, Verdict

PRODUCED = [ProducedEvent(entity, event, 10.0) for entity in "ab" for event in (1, 2, 3)]
MINUTES_15 = 15 * 60


def effects(*names: tuple[str, int]) -> list[WitnessedEffect]:
    return [
        WitnessedEffect(entity, event, 10.0, 11.0 + at) for at, (entity, event) in enumerate(names)
    ]


ALL = effects(*((each.entity, each.event) for each in PRODUCED))


def judged(
    found: list[WitnessedEffect],
    *parked: ParkedFact,
    capability: Capability = Capability.OPAQUE,
    in_doubt_max: int = 1,
    ended: bool = True,
    notes: tuple[str, ...] = (),
) -> Assessment:
    evidence = SinkEvidence("sink", capability, found, parked, in_doubt_max, ended, notes)
    return judge_sink(PRODUCED, evidence)


def without(*names: tuple[str, int]) -> list[WitnessedEffect]:
    return [each for each in ALL if (each.entity, each.event) not in names]


def held(entity: str, event: int) -> ParkedFact:
    return ParkedFact(entity, event, ParkedState.HELD, doubted=True)


def decided(entity: str, event: int) -> ParkedFact:
    return ParkedFact(entity, event, ParkedState.DELIVERED, doubted=True)


# -- the checker


def test_a_run_in_which_each_event_arrived_once_is_valid() -> None:
    found = judged(ALL, decided("a", 3))
    assert found.verdict is Verdict.VALID
    assert found.counts == {Category.DELIVERED: 6}
    assert found.doubted == 1


@pytest.mark.parametrize(
    ("category", "assessment"),
    [
        (Category.LOST, judged(without(("a", 3)))),
        (Category.LOST, judged(without(("a", 3)), decided("a", 3))),
        (Category.DUPLICATED, judged([*ALL, *effects(("a", 3))])),
        (Category.DUPLICATED, judged([*ALL, *effects(("a", 3))], held("a", 3))),
        (Category.REORDERED, judged(effects(("b", 2), ("b", 1), ("b", 3)) + ALL[:3])),
        (Category.UNEXPECTED, judged([*ALL, *effects(("a", 4))])),
        (Category.UNEXPECTED, judged([*ALL, *effects(("c", 1))])),
        (Category.UNEXPECTED, judged(ALL, held("a", 9))),
        (Category.UNEXPECTED, judged(ALL, decided("a", 1), decided("b", 1))),
        (
            Category.UNEXPECTED,
            judged(ALL, decided("a", 1), capability=Capability.TRANSACTIONAL),
        ),
        (
            Category.UNEXPECTED,
            judged(without(("a", 3)), ParkedFact("a", 3, ParkedState.REJECTED, doubted=False)),
        ),
        (
            Category.UNEXPECTED,
            judged(ALL, ParkedFact("a", 3, ParkedState.WAITING, doubted=False)),
        ),
        (Category.UNEXPECTED, judged(ALL, notes=("a checkpoint came back",))),
    ],
    ids=[
        "lost",
        "recorded as delivered and lost",
        "repeated",
        "repeated while in doubt",
        "reordered",
        "an event that was not produced",
        "an entity that was not produced",
        "parked and not produced",
        "too many in doubt",
        "in doubt where nothing may be",
        "refused by nobody",
        "waiting although it arrived",
        "a note",
    ],
)
def test_a_planted_violation_of_each_category_is_found(
    category: Category, assessment: Assessment
) -> None:
    assert {each.category for each in assessment.violations} == {category}
    assert assessment.verdict is Verdict.INVALID


def test_an_event_that_still_waits_is_unknown_and_never_ok() -> None:
    waiting = ParkedFact("a", 3, ParkedState.WAITING, doubted=False)
    assert judged(without(("a", 3)), waiting).verdict is Verdict.UNKNOWN
    assert judged(without(("a", 3)), ended=False).verdict is Verdict.UNKNOWN
    assert judged(ALL, ended=False).verdict is Verdict.UNKNOWN


def test_a_repeat_does_not_count_as_a_wrong_order_too() -> None:
    found = judged([*ALL, *effects(("a", 1))])
    assert [each.category for each in found.violations] == [Category.DUPLICATED]


def test_recovery_lasts_until_every_sink_has_an_event_that_is_younger_than_the_fault() -> None:
    first = [WitnessedEffect("a", 1, 1.0, 9.0), WitnessedEffect("a", 2, 6.0, 8.0)]
    second = [WitnessedEffect("a", 1, 1.0, 2.0), WitnessedEffect("a", 2, 6.0, 10.0)]
    assert recovery_times([5.0, 0.5, 7.0], [first, second]) == [5.0, 7.5, None]


# -- the schedule


def test_a_seed_repeats_its_schedule_and_another_one_has_another() -> None:
    assert plan_faults(7, MINUTES_15) == plan_faults(7, MINUTES_15)
    assert plan_faults(7, MINUTES_15) != plan_faults(8, MINUTES_15)
    assert plan_faults(7, 120) == tuple(
        fault for fault in plan_faults(7, MINUTES_15) if fault.at_s < 120
    )


@pytest.mark.parametrize("seed", range(1, 6))
def test_fifteen_minutes_have_every_kind_of_fault_and_eighty_in_all(seed: int) -> None:
    planned = plan_faults(seed, MINUTES_15)
    assert {fault.kind for fault in planned} == set(KINDS)
    assert len(planned) >= 80


@pytest.mark.parametrize("seed", range(1, 6))
def test_two_faults_of_one_target_do_not_overlap(seed: int) -> None:
    ends: Counter[str] = Counter()
    for fault in plan_faults(seed, MINUTES_15):
        assert fault.at_s >= ends[fault.target]
        ends[fault.target] = fault.at_s + fault.lasts_s  # type: ignore[assignment]


def test_a_schedule_for_plain_spark_has_nothing_that_needs_a_ledger() -> None:
    planned = plan_faults(3, MINUTES_15, liar=True)
    assert planned
    assert not [fault for fault in planned if KINDS[fault.kind].needs_ledger]
    assert {fault.target for fault in planned}.isdisjoint({"ledger", "redis", "standbys"})


def test_each_kind_of_fault_has_an_action() -> None:
    assert set(ACTIONS) == set(KINDS)


# -- the network


@pytest.fixture
def echo() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


def test_a_network_passes_what_is_sent_and_refuses_while_it_is_cut(echo: socket.socket) -> None:
    network = TcpProxy(int(echo.getsockname()[1]))
    try:
        place = ("127.0.0.1", network.port)
        with socket.create_connection(place) as client:
            behind, _ = echo.accept()
            with behind:
                client.sendall(b"hello")
                assert behind.recv(100) == b"hello"
                behind.sendall(b"and back")
                assert client.recv(100) == b"and back"
                network.cut()
                assert behind.recv(100) == b""
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(place)
        network.restore()
        with socket.create_connection(place):
            echo.accept()[0].close()
    finally:
        network.close()


# -- the report


class Page(HTMLParser):
    """What a page shows, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


def report(*sinks: SinkResult) -> ChaosReport:
    faults = (
        TimedFault(1.0, "worker.kill", "workers", 0.0, "1 of 2 Python workers", None, 3.5),
        TimedFault(5.0, "worker.kill", "workers", 0.0, "", "there is no Python worker"),
        TimedFault(9.0, "network.cut", "redis", 4.0, "<script>alert(1)</script>", None, 5.5),
    )
    return ChaosReport(7, 0.5, False, {"semel": "1"}, 6, faults, sinks, 0, 2.0)


def result(assessment: Assessment, *, per_second: tuple[int, ...] = (0, 3, 3)) -> SinkResult:
    return SinkResult.of(("http", "opaque"), assessment, 4, per_second)


def test_a_report_adds_up_and_is_json() -> None:
    bad = result(judged([*without(("a", 3)), *effects(("b", 3))]))
    made = report(result(judged(ALL)), bad)
    assert made.verdict is Verdict.INVALID
    assert (made.total("lost"), made.total("repeated"), len(made.happened)) == (1, 1, 2)
    assert made.by_kind()["worker.kill"] == {
        "happened": 1,
        "not_possible": 1,
        "recovered": 1,
        "recovery_median_s": 3.5,
        "recovery_max_s": 3.5,
    }
    assert json.loads(ascii_json(made.to_json()))["lost"] == 1


def test_a_report_is_unknown_as_long_as_one_sink_is() -> None:
    ended = result(judged(ALL))
    assert report(ended, result(judged(ALL, ended=False))).verdict is Verdict.UNKNOWN
    assert report(ended, ended).verdict is Verdict.VALID


def test_the_page_of_a_report_shows_its_timeline_and_loads_nothing(tmp_path: Path) -> None:
    file = tmp_path / "chaos.html"
    write_page(report(result(judged(without(("a", 3))))), file)
    page = Page()
    page.feed(file.read_text())
    assert page.loads == []
    assert page.tags["script"] == 0
    assert page.tags["svg"] == 1
    assert page.tags["rect"] == 2 + 2  # two faults that happened, two seconds with effects
    assert "event 3 of 'a' never took effect" in page.text
    assert "semel chaos --minutes 0.5 --seed 7" in page.text
