"""Every capability delivers three micro-batches once, and every step of the protocol is reached."""

from __future__ import annotations

from spark.accounts import FIVE
from spark.driving import Bed, assert_once, assert_ordered
from spark.faults import DRIVER_STEPS, SINK_STEPS, STEPS


def test_every_capability_delivers_once_and_every_step_of_the_protocol_is_reached(bed: Bed) -> None:
    bed.payments(files=3, rows=10)
    every = list(STEPS)
    bed.run(bed.settings(sink=FIVE, steps=every, sink_settings={"steps": every}))
    for sink in FIVE:
        assert_once(bed.house.charges(sink), bed.expected)
        assert_ordered(bed.house.charges(sink))
    assert all(call.events == call.effects for call in bed.house.calls())
    asked = bed.house.asked()
    kinds = ("register", "open", "claim", "span", "complete")
    steps = {f"{kind}.{when}" for kind in kinds for when in ("before", "after")}
    assert {*steps, *SINK_STEPS, *DRIVER_STEPS} <= asked.keys()
    assert all(asked[f"{kind}.before"] == asked[f"{kind}.after"] for kind in kinds)
    assert asked["complete.after"] == 3
