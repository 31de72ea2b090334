"""Calls a destination: what is retried, for how long, and how each outcome is classified.

Always true:
- an unclassified error is an unknown outcome;
- opening a connection has no effect, so any error there can be retried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import (
    DeliveryError,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
)
from semel.protocol import Capability
from semel.sinks import DELIVERED, Receipt, Unclassified, checked_session, left_to_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.events import Event
    from semel.runtime import Runtime
    from semel.sinks import AnySession, Retry, Sink, Target


class Forgotten(Exception):
    """The events to send may have arrived before, and their key may be forgotten."""


class RefusedInDoubt(OutcomeUnknown):
    """The event was refused, but an earlier call may have arrived: a refusal undoes nothing."""

    @classmethod
    def after(cls, why: Rejected) -> RefusedInDoubt:
        """Return the error for an event that was refused with `why`."""
        return cls(f"{why}; an earlier call of it was not answered, so it may have arrived")


def outcome(call: Callable[[], Receipt | None]) -> Receipt | DeliveryError:
    """Make one call and return its outcome. Raises only semel's own errors other than
    `DeliveryError`.
    """
    try:
        receipt = call()
        if receipt is not None and not isinstance(receipt, Receipt):
            raise TypeError(f"it answered {type(receipt).__name__}, not a Receipt")
    except DeliveryError as error:
        return error
    except SemelError:
        raise
    except Exception as error:  # noqa: BLE001 - an unclassified error is unknown
        return Unclassified.of(error)
    return DELIVERED if receipt is None else receipt


def call_patiently(
    call: Callable[[], Receipt | None],
    retry: Retry,
    runtime: Runtime,
    before_each: Callable[[], None] = lambda: None,
) -> Receipt | DeliveryError:
    """Call, and retry while nothing arrived, until the sink's retries are used up."""
    result: Receipt | DeliveryError = NotDelivered("not tried")
    for wait_s in retry.waits(runtime.random, runtime.clock.monotonic):
        if wait_s:
            asked = result.retry_after_s if isinstance(result, NotDelivered) else None
            runtime.clock.sleep(max(wait_s, asked or 0.0))
        before_each()
        result = outcome(call)
        if not isinstance(result, NotDelivered):
            return result
    return result


def answer_of(probe: Callable[[Event], bool | None], event: Event) -> bool | None:
    """Ask a probe about an event. Raises `OutcomeUnknown` for an answer that was not run (a
    coroutine or generator).
    """
    answer = probe(event)
    left = left_to_run(answer)
    if left is not None:
        raise OutcomeUnknown(f"it gave {left}")
    return answer


def forgets(sink: Sink, age_s: float) -> bool:
    """Whether a REPEATABLE destination may have forgotten a key of this age by the time a repeat
    sent now arrives.
    """
    absorbs = sink.capability is Capability.REPEATABLE
    return absorbs and age_s + sink.deadline_s > sink.remembers_s


def open_session(
    sink: Sink,
    target: Target,
    runtime: Runtime,
    look_at: Callable[[Exception], None] = lambda _: None,
) -> AnySession:
    """Open a session, with retries. Raises `NotDelivered` if the destination cannot be reached, and
    what `look_at` raises for an unclassified error.
    """
    last: Exception | None = None
    for _ in sink.retry.tries(runtime):
        try:
            return checked_session(sink, sink.open(target))
        except NotDelivered as error:
            last = error
        except SemelError:
            raise
        except Exception as error:  # noqa: BLE001 - connecting sends nothing
            look_at(error)
            last = error
    raise NotDelivered(
        f"pipeline {target.pipeline!r}, sink {target.sink!r}, partition {target.partition}: the "
        f"destination could not be reached ({last}). Nothing was sent; see that it runs, then "
        "restart the query"
    ) from last
