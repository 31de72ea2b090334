"""The test bed itself: plain `foreachBatch` charges twice, and the witness sees it."""

from __future__ import annotations

import pytest

from spark.driving import Bed, assert_once, missing, repeated


def test_plain_foreach_batch_charges_each_once_when_nothing_fails(bed: Bed) -> None:
    bed.payments(files=3, rows=10)
    bed.run(bed.settings(how="plain"))
    assert_once(bed.house.charges(), bed.expected)


@pytest.mark.parametrize("step", ["effect.before", "effect.after"])
def test_plain_foreach_batch_charges_twice_when_a_worker_is_killed(bed: Bed, step: str) -> None:
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
