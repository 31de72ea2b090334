"""A Python function as a sink: the decorator, its settings, and what its failures are called."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, NotDelivered, OutcomeUnknown, Rejected
from semel.events import Attempt, Chunk, Event, Given, Minibatch
from semel.protocol import Capability, DoubtWord, OnDoubt, OnReject
from semel.sinks import DELIVERED, Function, Receipt, Session, Target, sink
from semel.sinks.files import Files

TARGET = Target("pay", "charge", Minibatch(1, 0), "0", Attempt(1, 1))


def chunk(count: int) -> Chunk:
    values = [{"c": "e", "id": at, "v": at * 1.5} for at in range(count)]
    rows = Given(entity="c", event=("id",)).stamper("0").stamp(pa.RecordBatch.from_pylist(values))
    return Chunk(rows, 0, count, key="k", osn_base=101, prefix="pay/charge/")


def session(made: Function) -> Session:
    opened = made.open(TARGET)
    assert isinstance(opened, Session)
    return opened


# --- the decorator --------------------------------------------------------------------------------


def test_a_bare_decorator_makes_the_safest_sink() -> None:
    @sink
    def charge(event: Event) -> None: ...

    assert isinstance(charge, Function)
    assert charge.name == "charge"
    assert charge.capability is Capability.OPAQUE
    assert (charge.window, charge.chunk_rows, charge.span_chunks) == (1, 1, 1)
    assert (charge.on_doubt, charge.on_reject) == (OnDoubt.HOLD, OnReject.PARK)
    assert charge.describe() == {"capability": "opaque"}


def test_a_decorator_takes_settings() -> None:
    @sink(window=25, on_doubt="skip", on_reject="block", name="till", deadline_s=3.0)
    def charge(event: Event) -> None: ...

    assert (charge.name, charge.window, charge.chunk_rows) == ("till", 25, 25)
    assert (charge.on_doubt, charge.on_reject) == (OnDoubt.SKIP, OnReject.BLOCK)
    assert charge.deadline_s == 3.0


def test_a_decorated_function_can_still_be_called() -> None:
    @sink(window=2)
    def add(left: Any, right: int = 1) -> object:
        return left + right

    assert add(2) == 3
    assert add(2, right=5) == 7


@pytest.mark.rows("S21", "A14")
def test_a_function_as_on_doubt_is_the_probe() -> None:
    def arrived(event: Event) -> bool:
        return event.id == 1

    @sink(on_doubt=arrived)
    def charge(event: Event) -> None: ...

    assert charge.on_doubt is OnDoubt.PROBE
    assert charge.probe is arrived


@pytest.mark.parametrize("policy", ["hold", "resend", "skip", "stop"])
@pytest.mark.rows("S21")
def test_every_policy_has_its_word(policy: DoubtWord) -> None:
    made = sink(on_doubt=policy)(print)
    assert made.on_doubt is OnDoubt(policy)
    assert made.name == "print"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"window": 0}, "window.*at least 1, got 0"),
    ({"window": -3}, "window.*at least 1, got -3"),
    ({"window": "many"}, "sink 'charge'"),
    ({"on_doubt": "ask"}, "'ask'.*use hold, resend, skip, stop or a function"),
    ({"on_doubt": "probe"}, "needs a probe function"),
    ({"on_doubt": "hold", "probe": bool}, "needs a probe function"),
    ({"on_reject": "drop"}, "'drop'.*use park or block"),
    (
        {"windov": 3},
        "unknown setting 'windov'; did you mean 'window'[?] Settings: window, on_doubt",
    ),
    ({"colour": 3}, "unknown setting 'colour'[.] Settings: window, on_doubt"),
    ({"function": print}, "unknown setting 'function'"),
]


@pytest.mark.parametrize(("settings", "said"), BAD)
def test_a_setting_that_cannot_be_is_refused_with_a_clear_message(
    settings: dict[str, Any], said: str
) -> None:
    def charge(event: Event) -> None: ...

    decorate: Any = sink(**settings)
    with pytest.raises(ConfigurationError, match=said) as refused:
        decorate(charge)
    assert "sink 'charge'" in str(refused.value)


def test_what_cannot_be_called_is_no_sink() -> None:
    with pytest.raises(ConfigurationError, match="function must be callable, got int"):
        Function(name="charge", function=7)  # type: ignore[arg-type]


def test_a_sink_is_frozen() -> None:
    made = sink(print)
    with pytest.raises(AttributeError):
        made.window = 3  # type: ignore[misc]


def test_a_sink_of_an_undecorated_function_travels() -> None:
    made = Function(name="shown", function=print, window=4)
    assert pickle.loads(pickle.dumps(made)) == made


# --- a session ------------------------------------------------------------------------------------


def test_the_function_is_called_with_each_event_in_order() -> None:
    got: list[Event] = []
    opened = session(sink(got.append))
    assert opened.deliver(chunk(3)) == DELIVERED
    opened.close()
    assert [(event.entity, event.id, event.osn) for event in got] == [
        ("e", 0, 101),
        ("e", 1, 102),
        ("e", 2, 103),
    ]
    assert got[1].key == "pay/charge/e/1"
    assert got[1].value == {"c": "e", "id": 1, "v": 1.5}


@pytest.mark.parametrize("error", [NotDelivered("busy", 2.0), Rejected("no such card")])
def test_a_session_stops_at_the_first_failure_and_lists_the_rest_as_not_tried(
    error: Exception,
) -> None:
    tried: list[object] = []

    @sink(window=5)
    def charge(event: Event) -> None:
        tried.append(event.id)
        if event.id == 2:
            raise error

    receipt = session(charge).deliver(chunk(5))
    assert tried == [0, 1, 2]
    assert receipt.failures.keys() == {2, 3, 4}
    assert receipt.failures[2] is error
    for place in (3, 4):
        assert isinstance(receipt.failures[place], NotDelivered)
        assert "not tried" in str(receipt.failures[place])


@pytest.mark.parametrize("batches", [False, True])
def test_an_error_nobody_classified_is_unknown(batches: bool) -> None:
    @sink(window=3, batches=batches)
    def charge(_: object) -> None:
        raise TimeoutError("no answer")

    opened = session(charge)
    if batches:
        with pytest.raises(OutcomeUnknown, match="TimeoutError: no answer"):
            opened.deliver(chunk(3))
    else:
        failure = opened.deliver(chunk(3)).failures[0]
        assert isinstance(failure, OutcomeUnknown)
        assert str(failure) == "TimeoutError: no answer"


def test_an_interrupt_is_not_an_outcome() -> None:
    @sink
    def charge(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session(charge).deliver(chunk(1))


def test_with_batches_the_function_takes_the_chunk_as_one_arrow_batch() -> None:
    got: list[pa.RecordBatch] = []
    receipt = session(sink(window=3, batches=True)(got.append)).deliver(chunk(3))
    assert receipt == DELIVERED
    [batch] = got
    assert isinstance(batch, pa.RecordBatch)
    assert batch.to_pydict() == {"c": ["e"] * 3, "id": [0, 1, 2], "v": [0.0, 1.5, 3.0]}


def test_with_batches_what_the_function_raises_is_the_outcome_of_all_of_them() -> None:
    @sink(window=3, batches=True)
    def charge(batch: pa.RecordBatch) -> None:
        raise Rejected("one of them is bad")

    with pytest.raises(Rejected):
        session(charge).deliver(chunk(3))


def test_events_that_are_parked_are_missing_from_a_chunk_and_keep_their_numbers() -> None:
    got: list[Event] = []
    whole = chunk(4)
    part = Chunk(whole.rows.take(np.array([True, False, True, True])), 0, 4, "k", 101, "p/")
    session(sink(got.append)).deliver(part)
    assert [(event.id, event.osn) for event in got] == [(0, 101), (2, 103), (3, 104)]


def test_a_receipt_without_failures_says_that_all_arrived() -> None:
    assert Receipt() == DELIVERED
    assert not DELIVERED.failures


@sink(window=3, name="by name")
def by_name(event: Event) -> None:
    del event


def test_a_decorated_function_travels_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(by_name)) is by_name


def test_a_decorated_function_with_other_settings_travels_with_them() -> None:
    changed = replace(by_name, on_reject=OnReject.BLOCK, window=5)
    arrived = pickle.loads(pickle.dumps(changed))
    assert arrived == changed
    assert arrived != by_name
    assert arrived.function is by_name.function


def test_a_sink_made_of_another_function_travels_with_it() -> None:
    made = Function(name="other", function=print, window=2)
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_function_that_would_never_run_is_refused() -> None:
    async def later(event: Event) -> None:
        del event

    with pytest.raises(ConfigurationError, match="async def"):
        sink(later)


class Later:
    async def __call__(self, event: Event) -> bool:
        raise AssertionError(event)


def step_by_step(event: Event) -> Iterator[None]:
    yield


async def step_by_step_later(event: Event) -> AsyncIterator[None]:
    yield


UNRUN = [Later(), partial(Later()), step_by_step, step_by_step_later]
"""What a call does not run, but gives something that could be."""


@pytest.mark.parametrize("function", UNRUN)
def test_a_function_that_a_call_does_not_run_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="a call would send nothing"):
        Function(name="charge", function=function)


@pytest.mark.parametrize("probe", UNRUN)
def test_a_probe_that_a_call_does_not_run_is_refused(probe: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="a call would run nothing"):
        sink(on_doubt=probe)(print)


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_what_is_left_to_run_when_a_function_returns_may_not_have_arrived(batches: bool) -> None:
    @sink(window=1, batches=batches)
    def made(event: Event) -> object:
        return Later()(event)

    try:
        failure = session(made).deliver(chunk(1)).failures.get(0)
    except OutcomeUnknown as error:
        failure = error
    assert isinstance(failure, OutcomeUnknown)
    assert "returned a coroutine" in str(failure)


@pytest.mark.parametrize(
    "made",
    [
        lambda given, _: sink(name="out")(given),
        lambda given, _: sink(name="out", on_doubt=given)(print),
        lambda given, folder: Files(url=folder, then=given),
    ],
)
def test_what_a_function_was_given_is_in_no_repr_of_its_sink(
    made: Callable[[Any, Path], Any], tmp_path: Path
) -> None:
    described = made(partial(charge_with, token="t0p-s3cret"), tmp_path)
    assert "s3cret" not in f"{described!r} {described}"


def test_what_a_function_was_given_is_in_no_refusal_of_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="async def") as told:
        Files(url=tmp_path, then=partial(later_with, token="t0p-s3cret"))
    assert "s3cret" not in str(told.value)
    with pytest.raises(ConfigurationError, match="must be a loader, a sink or") as told:
        Files(url=tmp_path, then="t0p-s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in str(told.value)


def charge_with(event: object, token: str = "") -> None:
    del event, token


async def later_with(event: object, token: str = "") -> None:
    del event, token
