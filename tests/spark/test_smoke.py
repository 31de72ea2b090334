"""Every capability delivers three micro-batches once, and every step of the protocol is reached."""

from __future__ import annotations

import shutil
import signal

import pytest

from support.spark.clusters import LONG_S
from support.spark.driver_scripts import Bed, assert_once, assert_ordered, wait_for
from support.spark.faults import DRIVER_STEPS, SINK_STEPS, STEPS
from support.spark.reconcile import FIVE, Account, judge_held


@pytest.mark.smoke
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


@pytest.mark.smoke
def test_a_driver_killed_half_way_goes_on_and_a_lost_checkpoint_repeats_nothing(bed: Bed) -> None:
    bed.payments(files=3, rows=40)
    words = {"chunk_rows": 4, "lease_s": 1.0, "deadline_s": 1.0}
    settings = bed.settings(sink=FIVE, sink_settings=words, delay_s=0.02)
    run = bed.start(settings)
    wait_for(lambda: len(bed.house.charges("sequenced")) >= 30, run, LONG_S)
    run.kill()
    assert run.wait() == -signal.SIGKILL
    bed.end_leftovers()
    begun = len(bed.house.charges())
    assert begun < 3 * 40 * len(FIVE)

    bed.run(settings, LONG_S)
    opaque = Account.of(bed.house, settings, "opaque")
    opaque.assert_told(bed.expected, in_doubt_max=2)  # one event of each of the two tasks
    judge_held(bed.house, settings, "opaque")
    for sink in FIVE[1:]:
        Account.of(bed.house, settings, sink).assert_exact(bed.expected)

    shutil.rmtree(settings.checkpoint)
    bed.payments(files=1, rows=40)
    bed.run(bed.settings(sink=FIVE, sink_settings=words, max_files=4), LONG_S)
    for sink in FIVE:
        Account.of(bed.house, settings, sink).assert_exact(bed.expected)
