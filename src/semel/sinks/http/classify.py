"""What a response, or none, says about an event: the table of statuses and broken connections.

Always true:
- a status that is not in the table means unknown;
- only a complete response can mean "not delivered" or "rejected", or answer a probe: an incomplete
  or invalid one may not belong to this request;
- 503 means "not delivered" only together with Retry-After, which asks for a repeat: alone, a
  gateway also sends it if its service failed in the middle of the request;
- a broken connection means "not delivered" only if nothing of the request can have been written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from semel.errors import DeliveryError, NotDelivered, OutcomeUnknown, Rejected

if TYPE_CHECKING:
    from semel.runtime import Clock

SHOWN_BYTES = 2_048
"""How much of a response is kept in the reason."""

NOT_DELIVERED = {
    401: (
        "the service does not accept these credentials: nothing was done. Pass others with auth="
    ),
    407: (
        "a proxy requires credentials: nothing was passed on. Use the address of the service itself"
    ),
    408: "the service did not receive the request in time",
    425: "the service does not accept early data",
    429: "the service limits the rate of requests",
}
"""By their meaning nothing was done, and no event is at fault."""

UNAVAILABLE = 503

WAIT_S_MAX = 86_400.0
"""The longest wait for a service, whatever its Retry-After is."""

NEVER = {
    301: "the service has moved; redirects are not followed: correct url=",
    307: "the service is at another address; redirects are not followed: correct url=",
    308: "the service has moved; redirects are not followed: correct url=",
    422: (
        "the event is not valid for the service, or its Idempotency-Key was used before with "
        "another body"
    ),
}
"""By their meaning nothing was done, and nothing will be."""

IN_FLIGHT = 409
"""With an Idempotency-Key: a request with this key is still being worked on (IETF draft)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A service's answer: the status, the first part of the body, when to retry, and whether the
    response is complete.
    """

    status: int
    text: str = ""
    retry_after: str | None = None
    whole: bool = True


def judged(answer: Answer, where: str, clock: Clock, *, keyed: bool) -> DeliveryError | None:
    """Return the outcome of the event with this answer; None if it was delivered.

    `keyed`: the request had an Idempotency-Key by which the service absorbs repeats.
    """
    status = answer.status
    if 200 <= status < 300:
        return None
    answered = f"{where} answered {status} {_phrase(status)}".rstrip()
    shown = f" Response: {answer.text}" if answer.text else ""
    if not answer.whole:
        return OutcomeUnknown(
            f"{answered}, but the response is incomplete: the event may have arrived.{shown}"
        )
    wait_s = seconds_until(answer.retry_after, clock)
    found: DeliveryError
    if status == UNAVAILABLE and wait_s is not None:
        found = NotDelivered(
            f"{answered}: the service is not available and states when to retry.{shown}", wait_s
        )
    elif status in NOT_DELIVERED:
        found = NotDelivered(f"{answered}: {NOT_DELIVERED[status]}.{shown}", wait_s)
    elif status == IN_FLIGHT and keyed:
        found = OutcomeUnknown(f"{answered}: an earlier request with this key is in flight.{shown}")
    elif status in NEVER or 400 <= status < 500:
        found = Rejected(f"{answered}{': ' + NEVER[status] if status in NEVER else ''}.{shown}")
    else:
        elsewhere = ", and redirects are not followed: correct url=" if 300 <= status < 400 else ""
        found = OutcomeUnknown(f"{answered}: the event may have arrived{elsewhere}.{shown}")
    return found


def seconds_until(retry_after: str | None, clock: Clock) -> float | None:
    """Read Retry-After, which is a number of seconds or a date; None if it is neither. It is at
    most `WAIT_S_MAX`, however far in the future it is.
    """
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), WAIT_S_MAX)
    try:
        until = parsedate_to_datetime(text)
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        wait_s = until.timestamp() - clock.wall()
    except (ArithmeticError, LookupError, TypeError, ValueError):  # a date that there is not
        return None
    return min(max(0.0, wait_s), WAIT_S_MAX)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
