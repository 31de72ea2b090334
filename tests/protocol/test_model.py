"""The model of the protocol in TLA+ follows the code, and its checker finds planted bugs.

`make model` explores all of its worlds; here are the smallest, so that the model is never broken.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from model.check import explore, main
from model.worlds import CAPABILITIES, LIVENESS, PLANTED, SAFETY, STANDARD, World
from semel.protocol import DOUBT, IMPOSSIBLE, RESUME, Capability, OnDoubt

MODEL = Path(__file__).parents[2] / "model"
WITHIN_S = 300.0
ROW = re.compile(r'<<"([\w ]+)", "([\w ]+)">> :> "([\w ]+)"')
POLICY = re.compile(r'\("(\w+)" :> (?:"(\w+)"|(TRUE|FALSE))\)')

needs_java = pytest.mark.skipif(
    shutil.which("java") is None or shutil.which("mvn") is None,
    reason="TLC needs Java and Maven: run .ci/java and .ci/maven",
)


def spec_rows(text: str) -> dict[tuple[str, str], str]:
    """The rows of the model's recovery table."""
    rows = [((found, capability), action) for found, capability, action in ROW.findall(text)]
    assert len(rows) == len(dict(rows)), "a pair has two rows"
    return dict(rows)


def code_rows() -> dict[tuple[str, str], str]:
    """The rows of the code's recovery table."""
    return {
        (found.value, capability.value): rule.action.value
        for (found, capability), rule in RESUME.items()
    }


def test_the_model_has_the_recovery_table_of_the_code() -> None:
    rows = spec_rows((MODEL / "Resume.tla").read_text())
    assert rows == code_rows()
    assert not rows.keys() & {(found.value, each.value) for found, each in IMPOSSIBLE}


def test_a_row_that_differs_is_found() -> None:
    text = (MODEL / "Resume.tla").read_text()
    other = text.replace('"intended", "opaque">> :> "doubt"', '"intended", "opaque">> :> "repeat"')
    assert other != text
    assert spec_rows(other) != code_rows()


def test_the_model_has_the_policies_of_the_code() -> None:
    """All but `stop` and `probe`, which hold or send as these do once a person has decided."""
    text = (MODEL / "Resume.tla").read_text()
    remedies = {
        name: value for name, value, _ in POLICY.findall(text.split("Remedy ==")[1]) if value
    }
    waits = {name: value == "TRUE" for name, _, value in POLICY.findall(text) if value}
    assert remedies == {each: DOUBT[OnDoubt(each)].remedy.value for each in remedies}
    assert waits == {each: DOUBT[OnDoubt(each)].waits for each in waits}
    assert remedies.keys() == waits.keys() == set(OnDoubt) - {OnDoubt.STOP, OnDoubt.PROBE}


def test_every_capability_is_explored_and_every_planted_bug_is_in_the_model() -> None:
    assert {each.value for each in Capability} == set(CAPABILITIES)
    assert {each.capability for each in STANDARD} == set(CAPABILITIES)
    text = "".join(each.read_text() for each in MODEL.glob("*.tla"))
    assert set(re.findall(r'Planted\("([^"]+)"\)', text)) == {each.bug for each in PLANTED}
    assert {each.properties[0] for each in PLANTED} == {*SAFETY, LIVENESS}


SMALLEST = World(
    "smallest", "opaque", ((1,), (1,)), (1,), crashes=1, properties=(*SAFETY, LIVENESS)
)


@needs_java
def test_in_the_smallest_world_everything_holds() -> None:
    found = explore(SMALLEST, WITHIN_S)
    assert found.as_expected, found.output
    assert found.complete
    assert found.states > 100


@needs_java
@pytest.mark.parametrize("bug", ["claim without the row open", "a doubt is not recorded"])
def test_a_planted_bug_is_found(bug: str) -> None:
    [world] = [each for each in PLANTED if each.name == bug]
    found = explore(world, WITHIN_S)
    assert found.violated == world.properties[0], found.output
    assert "State 1: <Initial predicate>" in found.output


@needs_java
def test_a_checker_that_does_not_finish_has_found_nothing() -> None:
    found = explore(SMALLEST, 0.01)
    assert not found.as_expected
    assert "unknown" in found.line
    assert not explore(replace(SMALLEST, capability="none"), WITHIN_S).as_expected


def test_a_run_that_explores_nothing_fails() -> None:
    assert main(["--only", "no world has this name"]) == 1
