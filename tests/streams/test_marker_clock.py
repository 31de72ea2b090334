"""The marker clock in simulated time: in time, in few minibatches, whatever comes and whatever it
costs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.marker_simulation import (
    SETTLED,
    ArrivalRates,
    Cost,
    Fixed,
    InSource,
    Pace,
    PacedSource,
    TimedRun,
    best_fixed,
    linear,
    simulate,
)
from semel.errors import ConfigurationError
from semel.streams import APPLICATIONS, Application, MarkerClock

SEED = int(os.environ.get("SEMEL_CLOCK_SEED", "1"))
SECONDS = Application("two seconds", 2.0, 0.8)
STEP = ArrivalRates([(40, 100), (30, 20_000), (40, 100)])
LONG_STEP = ArrivalRates([(150, 100), (30, 20_000), (150, 100)])
SINK = linear(0.2, 24e-6)
SUPERLINEAR = linear(0.1, 0.0, 5.4e-9)

Mode = Callable[[MarkerClock], Pace]
MODES = [PacedSource, InSource]


def run(load: ArrivalRates, cost: Cost, mode: Mode, limit: int | None = None) -> TimedRun:
    found = simulate(load, cost, mode(MarkerClock(SECONDS)), SEED, limit)
    assert sum(each.events for each in found.minibatches) == load.arrivals(SEED)[-1]
    return found


def clock(*ran: tuple[int, float], rate: float = 0.0, latency_s: float = 2.0) -> MarkerClock:
    """A clock that has seen one rate, and minibatches of (events, seconds)."""
    made = MarkerClock(Application("test", latency_s, 0.8))
    made.arrived(0, 0.0)
    for second in range(3):
        made.arrived(int(rate * (second + 1)), second + 1.0)
        made.marked(second + 1.0)
    for events, seconds in ran:
        made.ran(events, seconds)
    return made


# -- the equation


@pytest.mark.rows("O2", "N7")
def test_the_interval_is_the_longest_that_delivers_in_time() -> None:
    choice = clock((100, 0.101), (10_000, 0.2), (1_000, 0.11), rate=1_000).choose()
    assert (choice.fixed_s, choice.per_event_s) == pytest.approx((0.1, 1e-5))
    assert choice.rate == pytest.approx(1_000)
    worst = choice.interval_s + 0.1 + 1e-5 * 1_000 * choice.interval_s
    assert worst == pytest.approx(0.8 * 2.0)
    assert choice.reachable
    assert choice.reason == (
        "a marker every 1.49 s: the longest interval that delivers within 1.6 s (test, 80% of 2 s)"
        "; 1,000 events/s, and a minibatch takes 0.1 s + 10 us per event"
    )


@pytest.mark.rows("O2")
@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_interval_follows_from_the_type_of_the_application(name: str) -> None:
    made = MarkerClock(name)
    made.ran(10, 0.05)
    application = APPLICATIONS[name]
    assert made.choose().interval_s == pytest.approx(
        application.latency_s * application.safety - 0.05
    )
    assert name in made.choose().reason
    assert MarkerClock(name, latency_s=3).planned_s == pytest.approx(3 * application.safety)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Application.of("payment"), "unknown application 'payment'; use one of alerts, "),
        (lambda: Application.of("alerts", 0), "latency_s must be a number .* above 0, got 0"),
        (lambda: Application.of("alerts", -1.5), "above 0, got -1.5"),
        (lambda: Application.of("alerts", float("nan")), "above 0, got nan"),
        (lambda: Application.of("alerts", float("inf")), "above 0, got inf"),
        (lambda: Application.of("alerts", "5"), "above 0, got '5'"),  # type: ignore[arg-type]
        (lambda: Application.of("alerts", True), "above 0, got True"),
        (lambda: Application("mine", 1.0, 1.5), "safety must be above 0 and at most 1, got 1.5"),
        (lambda: Application("mine", 1.0, 0.0), "safety must be above 0 and at most 1, got 0"),
    ],
)
def test_a_requirement_that_means_nothing_is_refused(make: Callable[[], object], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        make()


def test_an_interval_is_never_shorter_than_a_minibatch_takes() -> None:
    choice = clock((1_000, 0.9), rate=100).choose()
    assert choice.interval_s >= choice.cost_s
    assert "nothing is left for what is not measured" in choice.reason
    assert choice.reachable


def test_a_requirement_that_cannot_be_reached_is_said_and_it_runs_as_fast_as_it_can() -> None:
    choice = clock((1_000, 3.0), rate=100).choose()
    assert not choice.reachable
    assert choice.interval_s == pytest.approx(3.0)
    assert "2 s cannot be reached: at 100 events/s an event takes 6 s at best" in choice.reason


def test_a_sink_that_cannot_keep_up_is_said() -> None:
    choice = clock((1_000, 0.2), (10_000, 1.1), (20_000, 2.1), rate=20_000).choose()
    assert not choice.reachable
    assert "the sink cannot keep up with 20,000 events/s" in choice.reason


def test_nothing_measured_is_said_and_half_of_the_time_is_used() -> None:
    choice = MarkerClock("payments").choose()
    assert choice.interval_s == pytest.approx(2.0)
    assert "no minibatch has been measured yet" in choice.reason


# -- what it learns


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(0, 0.0)],
        [(0, 0.2)] * 3,
        [(100, 0.2)] * 50,
        [(100, 0.2), (101, 0.1)],
        [(10_000, 0.1), (100, 0.3)],
        [(1, 0.0), (2, 0.0), (4, 0.0)],
        [(100, float("nan")), (100, float("inf")), (-5, 0.1), (100, -1.0)],
        [(10**12, 1e-9), (1, 1e6)],
    ],
)
def test_few_and_degenerate_measurements_stay_sane(pairs: list[tuple[int, float]]) -> None:
    choice = clock(*pairs, rate=50).choose()
    assert 0 <= choice.fixed_s < float("inf")
    assert 0 <= choice.per_event_s < float("inf")
    assert 0 <= choice.interval_s < float("inf")
    assert choice.cost_s >= 0


def test_random_measurements_never_give_a_negative_or_endless_interval() -> None:
    rng = np.random.default_rng(SEED)
    for trial in range(200):
        made = clock(rate=float(10 ** rng.uniform(-2, 6)))
        for _ in range(rng.integers(1, 30)):
            made.ran(int(10 ** rng.uniform(0, 6)), float(10 ** rng.uniform(-4, 2)))
        choice = made.choose()
        assert 0 <= choice.interval_s < float("inf"), f"seed {SEED}, trial {trial}"
        assert min(choice.fixed_s, choice.per_event_s, choice.cost_s) >= 0


def test_a_part_that_the_measurements_do_not_show_is_not_guessed() -> None:
    choice = clock(*[(100, 0.2)] * 20, rate=100).choose()
    assert (choice.fixed_s, choice.per_event_s) == pytest.approx((0.2, 0.0))


@pytest.mark.rows("O14")
def test_a_restart_continues_with_what_was_learned() -> None:
    learned = clock((100, 0.101), (10_000, 0.2), (1_000, 0.11), rate=1_000)
    again = MarkerClock(learned.application)
    again.load(json.loads(json.dumps(learned.dump())))
    assert again.choose() == learned.choose()


@pytest.mark.parametrize(
    "dumped",
    [
        {},
        {"rate": "x", "before": None, "cost": 7},
        {"rate": -1.0, "cost": [["a", 1, 2], [1, 2], 5, [1.0, float("nan"), 0]]},
    ],
)
def test_a_state_that_cannot_be_used_is_left_out(dumped: dict[str, object]) -> None:
    made = MarkerClock("payments")
    made.load(dumped)
    assert made.choose() == MarkerClock("payments").choose()


def test_a_source_that_begins_again_is_no_negative_rate() -> None:
    made = clock((100, 0.1), rate=100)
    made.arrived(5, 4.0)
    assert made.waiting == 5
    made.marked(4.0)
    assert made.rate >= 0


# -- when a marker is due


@pytest.mark.rows("O1", "O3")
def test_no_marker_is_due_while_nothing_arrives() -> None:
    made = clock((100, 0.1), rate=100)
    made.arrived(300, 4.0)
    assert not made.due(4.0)
    made.arrived(300, 1_000.0)
    assert not made.due(1_000.0)


def test_the_interval_begins_with_the_first_event_that_waits() -> None:
    made = clock((100, 0.1), rate=100)
    made.arrived(300, 500.0)
    made.arrived(301, 500.1)
    interval = made.choose().interval_s
    assert not made.due(500.0 + interval * 0.9)
    assert made.due(500.0 + interval + 0.01)


def test_a_marker_comes_early_if_more_events_wait_than_were_expected() -> None:
    made = clock((100, 0.11), (10_000, 1.1), (20_000, 2.1), rate=100)
    made.arrived(300, 3.3)
    made.arrived(5_300, 3.4)
    assert not made.due(3.5)
    made.arrived(15_300, 3.6)  # their minibatch takes 1.6 s
    assert made.due(3.6)


# -- simulated runs


@pytest.mark.rows("O2", "N7")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "cost",
    [linear(0.1, 10e-6), SINK, linear(0.05, 42e-6)],
    ids=["a cheap sink", "a sink", "a sink at its limit"],
)
def test_events_are_in_time_outside_two_minibatches_after_a_step(mode: Mode, cost: Cost) -> None:
    found = run(STEP, cost, mode)
    assert found.quantile(0.99) <= 2.0
    fixed = best_fixed(STEP, cost, 2.0, SEED)
    assert fixed is not None
    # The fixed interval was chosen with hindsight and without a reserve.
    assert len(found.minibatches) <= 1.2 * len(fixed[1].minibatches)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_of_the_rate_is_followed_within_two_minibatches(mode: Mode) -> None:
    found = run(STEP, SINK, mode)
    for at, rate in ((40.0, 20_000), (70.0, 100)):
        after = [each for each in found.minibatches if each.marker >= at]
        choice = after[SETTLED + 1].choice  # made when two minibatches were seen
        assert choice is not None
        assert choice.rate == pytest.approx(rate, rel=0.3)


@pytest.mark.parametrize(("mode", "events"), [(PacedSource, 12_000), (InSource, 30_000)])
def test_bursts_are_in_time(mode: Mode, events: int) -> None:
    """Pacing learns of a burst from its minibatch, so the burst has to fit into the reserve."""
    load = ArrivalRates([(120, 100)], [(float(at), events) for at in range(5, 115, 9)])
    assert run(load, SINK, mode).quantile(0.99) <= 2.0


@pytest.mark.rows("O21")
@pytest.mark.parametrize("mode", MODES)
def test_silence_costs_no_minibatch_and_makes_nobody_wait_longer(mode: Mode) -> None:
    load = ArrivalRates([(10, 100), (60, 0), (10, 1_000), (60, 0), (20, 0.2)])
    found = run(load, SINK, mode)
    assert found.quantile(0.99, settled=False) <= 2.0
    assert len(found.minibatches) <= 24
    assert not [each for each in found.minibatches if 12 < each.marker < 70]


@pytest.mark.parametrize("mode", MODES)
def test_a_slow_sink_is_in_time_without_a_pause(mode: Mode) -> None:
    found = run(STEP, linear(0.8, 10e-6), mode)
    assert found.quantile(0.99) <= 2.0
    gaps = np.diff([each.marker for each in found.minibatches])
    assert gaps.min() >= 0.8 - 1e-9


@pytest.mark.parametrize("mode", MODES)
def test_a_change_of_cost_is_followed(mode: Mode) -> None:
    def cost(events: int, now: float) -> float:
        return (0.2 + 1e-5 * events) * (4 if 30 < now < 60 else 1)

    found = run(ArrivalRates([(100, 2_000)]), cost, mode)
    late = [
        each
        for each, (seconds, _) in zip(found.minibatches, found.latencies, strict=True)
        if seconds.max() > 2.0
    ]
    assert len(late) <= 2
    last = found.minibatches[-2].choice
    assert last is not None
    assert last.interval_s == pytest.approx(1.35, abs=0.1), "it is as long as before the change"


@pytest.mark.parametrize("mode", MODES)
def test_a_cost_that_varies_is_in_time(mode: Mode) -> None:
    rng = np.random.default_rng(SEED)
    found = run(STEP, lambda events, _: SINK(events, 0) * rng.uniform(0.8, 1.2), mode)
    assert found.quantile(0.99) <= 2.0


@pytest.mark.parametrize("mode", MODES)
def test_a_requirement_that_cannot_be_reached_is_missed_by_as_little_as_possible(
    mode: Mode,
) -> None:
    found = run(ArrivalRates([(100, 2_000)]), linear(3.0, 1e-5), mode)
    choice = found.minibatches[-2].choice
    assert choice is not None
    assert not choice.reachable
    assert found.quantile(0.99) <= 6.2
    assert np.diff([each.marker for each in found.minibatches]).min() >= 3.0 - 1e-9


# -- a sink that becomes slower with size


@pytest.mark.rows("O2", "N7")
def test_a_source_with_markers_of_its_own_keeps_a_sink_that_becomes_slower_with_size_in_time() -> (
    None
):
    found = run(LONG_STEP, SUPERLINEAR, InSource)
    assert found.quantile(0.99) <= 2.0
    fixed = best_fixed(LONG_STEP, SUPERLINEAR, 2.0, SEED)
    assert fixed is not None
    assert 3 * len(found.minibatches) <= len(fixed[1].minibatches)


@pytest.mark.rows("A3")
def test_pacing_keeps_such_a_sink_in_time_if_the_source_limits_a_minibatch() -> None:
    found = run(LONG_STEP, SUPERLINEAR, PacedSource, limit=5_000)
    assert found.quantile(0.99) <= 2.0
    assert max(each.events for each in found.minibatches) == 5_000
    fixed = best_fixed(LONG_STEP, SUPERLINEAR, 2.0, SEED)
    assert fixed is not None
    assert 3 * len(found.minibatches) <= len(fixed[1].minibatches)


def test_a_backlog_of_a_limited_source_is_delivered_without_a_pause() -> None:
    load = ArrivalRates([(30, 100)], [(0.0, 50_000)])
    found = run(load, SINK, PacedSource, limit=2_000)
    backlog = [each for each in found.minibatches if each.events == 2_000]
    gaps = np.diff([each.marker for each in backlog])
    assert gaps.max() == pytest.approx(SINK(2_000, 0))


# -- the bound


@pytest.mark.parametrize("per_event_s", [5e-6, 24e-6, 40e-6, 48e-6])
def test_no_clock_needs_less_than_half_of_the_minibatches_if_the_cost_is_linear(
    per_event_s: float,
) -> None:
    """A fixed interval that keeps up at the highest rate is at least half of the latency: a
    minibatch takes at most one interval, and both together are the latency. No interval is longer
    than the latency.
    """
    fixed = best_fixed(STEP, linear(0.02, per_event_s), 2.0, SEED)
    assert fixed is not None
    assert fixed[0] >= 1.0
    fewest = simulate(ArrivalRates([(110, 100)]), linear(0.02, per_event_s), Fixed(2.0), SEED)
    assert len(fixed[1].minibatches) <= 2 * len(fewest.minibatches)
