"""What is wrong with a pipeline is said with what to do and what to type; nothing is guessed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel.ledger import Ledger, open_store
from semel.operate import (
    Advice,
    HeartbeatWatch,
    PipelineDetail,
    Severity,
    read_pipeline_detail,
    read_pipelines_page,
)
from semel.protocol import ParkedState
from semel.runtime import Process
from support.console.generated_ledger import ELSEWHERE, NOW, GeneratedPipeline
from support.ledger.one_pipeline import PlannedClock

HERE = Process.here()


@pytest.fixture
def charges(tmp_path: Path) -> GeneratedPipeline:
    return GeneratedPipeline(open_store(f"sqlite:///{tmp_path}/ledger.db"))


def detail(pipeline: GeneratedPipeline, **moving: bool) -> PipelineDetail:
    return read_pipeline_detail(Ledger(pipeline.store), pipeline.name, moving, PlannedClock(NOW))


def advice(pipeline: GeneratedPipeline, **moving: bool) -> list[Advice]:
    return list(detail(pipeline, **moving).overview.advice)


def test_nothing_is_said_of_a_pipeline_that_runs_well(charges: GeneratedPipeline) -> None:
    charges.register()
    charges.put(charges.pacing())
    assert advice(charges, charges=True) == []


@pytest.mark.parametrize(
    ("owner", "moving", "severity", "what", "command"),
    [
        ({}, {}, Severity.NOTE, "is not confirmed yet", "semel status charges --watch"),
        ({}, {"charges": False}, Severity.PROBLEM, "is silent", "semel status charges --watch"),
        ({"ended": True}, {}, Severity.WARNING, "is not complete", "semel run FILE"),
        (
            {"process": replace(HERE, start="1")},
            {},
            Severity.PROBLEM,
            "is gone",
            "semel run FILE",
        ),
    ],
)
def test_the_state_of_a_run_has_its_own_advice(
    charges: GeneratedPipeline,
    owner: dict[str, Any],
    moving: dict[str, bool],
    severity: Severity,
    what: str,
    command: str,
) -> None:
    charges.register(**owner)
    [found] = advice(charges, **moving)
    assert (found.severity, found.command) == (severity, command)
    assert what in found.what
    assert found.do


def test_a_run_that_ended_with_a_complete_minibatch_is_fine(charges: GeneratedPipeline) -> None:
    charges.register(complete=True, ended=True)
    assert advice(charges) == []


def test_a_latency_above_the_required_one_is_a_warning(charges: GeneratedPipeline) -> None:
    charges.register()
    charges.put(charges.pacing(p99_s=7.2))
    [found] = advice(charges, charges=True)
    assert found.severity is Severity.WARNING
    assert "about 7.2 s, and 5 s are required" in found.what


def test_parked_events_and_damaged_rows_come_before_all_else(charges: GeneratedPipeline) -> None:
    charges.register(ended=True)
    charges.put(charges.parked("a", 1))
    charges.put(charges.parked("b", 1, ParkedState.REJECTED))
    charges.put(charges.parked("c", 1, ParkedState.RESEND))
    found = advice(charges)
    assert [each.severity.value for each in found] == ["problem"] * 2 + ["warning"] * 2
    assert [each.states for each in found] == ["held", "rejected", None, None]
    assert "1 event is in doubt at sink bank: it may have arrived" in found[0].what
    assert "1 to be sent again, and no run is active" in found[3].what


def test_more_rows_than_are_read_are_never_no_problem(charges: GeneratedPipeline) -> None:
    charges.register()
    charges.put(charges.many_parked(1_100, ParkedState.DELIVERED))
    [found] = advice(charges, charges=True)
    assert found.severity is Severity.WARNING
    assert "whether events wait for a person is not known" in found.what
    page = read_pipelines_page(Ledger(charges.store), moving={"charges": True})
    assert page.pipelines[0].severity is Severity.WARNING


def test_a_name_that_a_shell_would_split_is_quoted(charges: GeneratedPipeline) -> None:
    odd = GeneratedPipeline(charges.store, "a b; rm -rf x")
    odd.register()
    odd.put(odd.parked("a", 1))
    assert advice(odd)[0].command == "semel parked ls 'a b; rm -rf x'"


def test_a_heartbeat_is_judged_by_what_was_seen_of_it(charges: GeneratedPipeline) -> None:
    charges.process = ELSEWHERE
    charges.register()
    clock = PlannedClock()
    watch = HeartbeatWatch(clock)

    def look(after_s: float) -> dict[str, bool]:
        clock.sleep(after_s)
        watch.see(detail(charges).overview.status)
        return watch.moving()

    assert look(0) == {}
    for _ in range(9):
        assert look(1) == {}
    assert look(1) == {"charges": False}
    charges.put([charges.owner(beat=2, at=NOW + 11)])
    assert look(1) == {"charges": True}
    assert look(9) == {"charges": True}
    assert look(1) == {"charges": False}
    charges.put([charges.owner(beat=3, at=NOW + 30)])
    assert look(60) == {}, "it was not watched for a minute"
