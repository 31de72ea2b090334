"""What an answer, or none, says about an event: the table of statuses and of broken connections.

Always true:
- a status that is not in the table is unknown;
- only a whole response says "not delivered" or "rejected", or answers a probe: one that breaks off,
  or breaks the rules of HTTP, may belong to nothing that was asked;
- 503 says "not delivered" only together with Retry-After, which asks for the request again: alone
  it is also what a gateway says whose service went away in the middle of the request;
- a broken connection says "not delivered" only where nothing of the request can have been written.
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
"""So long a destination is waited for at most, whatever its Retry-After says."""

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
    """What a destination answered: the status, the first part of the body, when to come again, and
    whether the response came whole.
    """

    status: int
    text: str = ""
    retry_after: str | None = None
    whole: bool = True


def judged(answer: Answer, where: str, clock: Clock, *, keyed: bool) -> DeliveryError | None:
    """Say what became of the event that was answered so; None when it was delivered.

    `keyed` says that the request carried an Idempotency-Key that the destination absorbs by.
    """
    status = answer.status
    if 200 <= status < 300:
        return None
    told = f"{where} answered {status} {_phrase(status)}".rstrip()
    shown = f" Response: {answer.text}" if answer.text else ""
    if not answer.whole:
        return OutcomeUnknown(
            f"{told}, but the response is incomplete: the event may have arrived.{shown}"
        )
    wait_s = seconds_until(answer.retry_after, clock)
    found: DeliveryError
    if status == UNAVAILABLE and wait_s is not None:
        found = NotDelivered(
            f"{told}: the service is not available and states when to retry.{shown}", wait_s
        )
    elif status in NOT_DELIVERED:
        found = NotDelivered(f"{told}: {NOT_DELIVERED[status]}.{shown}", wait_s)
    elif status == IN_FLIGHT and keyed:
        found = OutcomeUnknown(f"{told}: an earlier request with this key is in flight.{shown}")
    elif status in NEVER or 400 <= status < 500:
        found = Rejected(f"{told}{': ' + NEVER[status] if status in NEVER else ''}.{shown}")
    else:
        elsewhere = ", and redirects are not followed: correct url=" if 300 <= status < 400 else ""
        found = OutcomeUnknown(f"{told}: the event may have arrived{elsewhere}.{shown}")
    return found


def seconds_until(retry_after: str | None, clock: Clock) -> float | None:
    """Read Retry-After, which is a number of seconds or a date; None where it is neither. However
    far it lies in the future, it is at most `WAIT_S_MAX`.
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
