"""The test bed itself: plain `foreachBatch` charges twice, and the witness sees it."""

from __future__ import annotations

import os
import signal

from semel.verify.process_group import state_of
from support.spark.driver_scripts import Bed, assert_once, missing, repeated, wait_for


def test_plain_foreach_batch_charges_twice_when_a_worker_is_killed(bed: Bed) -> None:
    step = "effect.after"
    bed.payments(files=2, rows=10)
    bed.house.arm(step, after=5)
    bed.run(bed.settings(how="plain", sink_settings={"steps": [step]}))
    assert len(bed.house.taken(step)) == 1
    assert missing(bed.house.charges(), bed.expected) == set()
    assert repeated(bed.house.charges())


def test_plain_foreach_batch_charges_twice_when_the_driver_is_killed(bed: Bed) -> None:
    bed.payments(files=2, rows=10)
    bed.house.arm("batch.after")
    starts = bed.run_until_finished(bed.settings(how="plain", steps=["batch.after"]))
    assert starts == 2
    assert missing(bed.house.charges(), bed.expected) == set()
    assert len(repeated(bed.house.charges())) == 10


def test_a_worker_can_be_stopped_by_itself_and_continued(bed: Bed) -> None:
    bed.payments(files=1, rows=10)
    bed.house.arm("effect.before", "stop", after=3)
    run = bed.start(bed.settings(how="plain", sink_settings={"steps": ["effect.before"]}))
    taken = wait_for(lambda: bed.house.taken("effect.before"), run)[0]
    assert taken.pid in run.workers()
    wait_for(lambda: state_of(taken.pid) == "T", run)
    assert len(bed.house.charges()) == 3
    os.kill(taken.pid, signal.SIGCONT)
    run.finished()
    assert_once(bed.house.charges(), bed.expected)


def test_everything_that_a_killed_driver_left_comes_to_an_end(bed: Bed) -> None:
    bed.payments(files=1, rows=1000)
    run = bed.start(bed.settings(how="plain", delay_s=0.05))
    wait_for(bed.house.charges, run)
    assert run.jvm is not None
    assert run.workers()
    run.kill()
    assert run.wait() == -signal.SIGKILL
    bed.end_leftovers()
    assert bed.group.members() == []
