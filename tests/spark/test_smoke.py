"""Three micro-batches through `semel.deliver`, seen by a witness outside."""

from __future__ import annotations

import pytest

from semel.protocol import Capability
from spark.driving import Bed, assert_once, assert_ordered
from spark.faults import DRIVER_STEPS, SINK_STEPS, STEPS


@pytest.mark.parametrize("capability", [each.value for each in Capability])
def test_three_minibatches_are_delivered_once(bed: Bed, capability: str) -> None:
    bed.payments(files=3, rows=10)
    bed.run(bed.settings(sink=capability))
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())
    assert all(call.events == call.effects for call in bed.house.calls())


def test_every_step_of_the_protocol_is_reached(bed: Bed) -> None:
    bed.payments(files=2, rows=10)
    every = list(STEPS)
    sinks = ["opaque", "transactional"]
    bed.run(bed.settings(sink=sinks, steps=every, sink_settings={"steps": every}))
    asked = bed.house.asked()
    kinds = ("register", "open", "claim", "span", "complete")
    steps = {f"{kind}.{when}" for kind in kinds for when in ("before", "after")}
    assert {*steps, *SINK_STEPS, *DRIVER_STEPS} <= asked.keys()
    assert all(asked[f"{kind}.before"] == asked[f"{kind}.after"] for kind in kinds)
    assert asked["complete.after"] == 2


@pytest.mark.parametrize("step", ["claim.before", "claim.after", "effect.before", "effect.after"])
def test_a_worker_is_killed_at_a_step_and_each_is_charged_once(bed: Bed, step: str) -> None:
    bed.payments(files=2, rows=10)
    bed.house.arm(step, after=1)
    bed.run(bed.settings(sink="transactional", sink_settings={"steps": [step], "chunk_rows": 2}))
    assert len(bed.house.taken(step)) == 1
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())


@pytest.mark.parametrize("step", ["open.after", "complete.before", "complete.after", "batch.after"])
def test_the_driver_is_killed_at_a_step_and_each_is_charged_once(bed: Bed, step: str) -> None:
    bed.payments(files=2, rows=10)
    bed.house.arm(step)
    assert bed.run_until_finished(bed.settings(steps=[step])) == 2
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())


def test_positions_with_gaps_and_growth_are_delivered_once(bed: Bed) -> None:
    settings = bed.settings(source="positions", max_files=5, identity={"identity": "position"})
    bed.positions({0: [0, 1, 2, 5, 6, 9], 1: [3, 4]})
    bed.run(settings)
    bed.positions({0: [0, 1, 2, 5, 6, 9, 12], 1: [3, 4, 5], 2: [7]})
    bed.run(settings)
    assert_once(bed.house.charges(), bed.expected)
