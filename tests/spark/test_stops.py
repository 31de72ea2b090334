"""No process is killed: the query is stopped half-way, or the destination is in trouble."""

from __future__ import annotations

import random
import re

import pytest

from semel.protocol import ParkedState
from support.spark.driver_scripts import Bed, assert_once, assert_ordered
from support.spark.reconcile import FIVE, Account, seed

STOPS = 12
SHORT = {"lease_s": 2.0, "deadline_s": 2.0}
"""No call takes longer here, so no lease has to be waited out for longer."""


@pytest.mark.rows("S4", "S5", "S10", "S15", "A9", "A10", "O10", "N1", "N3")
def test_a_query_that_is_stopped_again_and_again_loses_and_repeats_nothing(bed: Bed) -> None:
    luck = random.Random(seed())
    # Far more than all stops together let through, so that each of them comes in the middle.
    bed.payments(files=12, rows=40, customers=40)
    stopped = bed.settings(
        name="stopped",
        sink=FIVE,
        words={"partitions": 2},
        sink_settings={"chunk_rows": 3, "span_chunks": 2, **SHORT},
        stops=[luck.randrange(5, 60) for _ in range(STOPS)],
    )
    # Each call takes so long that the query is always stopped inside of one.
    slow = bed.settings(
        name="slow",
        checkpoint=str(bed.folder / "slow"),
        sink=["opaque", "transactional"],
        words={"partitions": 2},
        sink_settings={"chunk_rows": 8},
        delay_s=0.05,
        max_files=12,
        stops=[luck.randrange(1, 5) for _ in range(4)],
    )
    run = bed.start(stopped, slow, script="support.spark.sequential_job")
    run.finished(400)
    ends = re.findall(r"^(stopped|ended) \w+: (.*)$", run.said(), re.MULTILINE)
    assert ends == [("stopped", "None")] * (STOPS + 4), run.said()
    assert "StackOverflow" not in run.said()
    for sink in FIVE[1:]:
        Account.of(bed.house, stopped, sink).assert_exact(bed.expected)
    Account.of(bed.house, slow, "transactional").assert_exact(bed.expected)
    opaque = Account.of(bed.house, stopped, "opaque")
    opaque.assert_told(bed.expected, in_doubt_max=STOPS * 2)
    Account.of(bed.house, slow, "opaque").assert_told(bed.expected, in_doubt_max=4 * 2)


@pytest.mark.rows("S15", "A9", "O10", "N3")
def test_a_destination_that_is_down_parks_nothing_and_one_bad_event_holds_up_only_itself(
    bed: Bed,
) -> None:
    bed.payments(files=3, rows=40, customers=40)
    steps = ["effect.before", "effect.after"]
    settings = bed.settings(
        sink=FIVE,
        master="local[2,12]",
        words={"partitions": 2},
        sink_settings={
            "chunk_rows": 3,
            "span_chunks": 2,
            "steps": steps,
            "retry": [0.05, 0.2, 0.5],  # then the task fails
            **SHORT,
        },
    )
    for place, sink in enumerate(FIVE):
        bed.house.plan("away", sink=sink, event=45 + place, times=20)
        bed.house.plan("reject", sink=sink, event=10 + place, times=None)
        for number, trouble in enumerate(("error", "lost", "dropped")):
            bed.house.plan(trouble, sink=sink, event=20 + 5 * number + place)
    for step in steps:  # an exception that is not classified
        bed.house.arm(step, "fail", after=90)
    run = bed.start(settings)
    run.finished(300)
    assert "NotDelivered" in run.said()
    assert all(len(bed.house.taken(step)) == 1 for step in steps)
    for place, sink in enumerate(FIVE):
        account = Account.of(bed.house, settings, sink)
        rejected = {(f"c{10 + place}", 10 + place)}
        assert account.in_state(ParkedState.REJECTED) == rejected
        left = set(bed.expected) - rejected
        if sink == "opaque":
            account.assert_told(left, in_doubt_max=5)
            assert {(f"c{event}", event) for event in (20, 25, 30)} <= account.held
        else:
            assert_once(account.charges, left)
            assert_ordered(account.charges)
            assert {row.state for row in account.parked} == {ParkedState.REJECTED}
