"""The errors of semel, and what each one means for the events it names.

```
SemelError
├── ConfigurationError        the pipeline as written cannot keep its promise; no event moved yet
│   └── MissingExtra          an optional dependency is missing (the message has the pip line)
├── DeliveryError             the outcome of a chunk; sink authors raise these
│   ├── NotDelivered          nothing arrived; trying again is safe (retry_after_s)
│   ├── Rejected              nothing arrived, and nothing ever will
│   └── OutcomeUnknown        it may have arrived; any other exception from a sink means this
├── LedgerError
│   ├── LedgerUnavailable     the store cannot be reached, or its reply was lost
│   ├── Fenced                a later attempt or run has taken over
│   ├── StopRequested         the run was asked to stop; nothing is in doubt because of it
│   ├── Diverged              a replay produced different content under a recorded identity
│   └── RangeUnavailable      events of an inbox that were pruned, or are not there yet
├── EventRefused              an inbox does not take an event; nothing of its request is stored
│   ├── EventTooLarge         it is larger than an inbox takes
│   └── RepeatDiffers         its source and id belong to an event with other content
├── HeldInDoubt               a person must first decide what happened (policy `stop`)
├── SinkBroken                a sink's code fails (NameError, ...) and has delivered nothing before
└── EventsParked              a batch job finished, but some of its events are parked
```

Every error survives pickling, because it travels from an executor to the driver. External text
enters a message through `plain_text`: on one line, escaped and truncated.
"""

from __future__ import annotations

SHOWN_MAX = 500
"""How many characters of a foreign text an error shows, where nothing else is said."""

_CUT = "..."


class SemelError(Exception):
    """Base of every error semel raises on purpose; the message names its subject and what to do."""


class ConfigurationError(SemelError):
    """The pipeline as written cannot keep its promise; raised before any event moves."""


class MissingExtra(ConfigurationError):
    """An optional dependency is not installed; the message says which, and has the pip line."""


class DeliveryError(SemelError):
    """The outcome of a chunk, as a sink reports it. Sink authors raise its three kinds."""


class NotDelivered(DeliveryError):
    """Nothing arrived; trying again is safe, after `retry_after_s` if it is known."""

    def __init__(self, message: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class Rejected(DeliveryError):
    """Nothing arrived, and nothing ever will: the event itself is at fault."""


class OutcomeUnknown(DeliveryError):
    """It may have arrived. Any exception from a sink that is not a semel error means this."""


class LedgerError(SemelError):
    """An error of the ledger."""


class LedgerUnavailable(LedgerError):
    """The store cannot be reached, or its reply was lost: it may or may not have committed."""


class Fenced(LedgerError):
    """A later attempt or run has taken over; this one stops and changes nothing more."""


class StopRequested(LedgerError):
    """The run was asked to stop, and did so where nothing is in doubt; the next one goes on."""


class Diverged(LedgerError):
    """A replay produced different content under a recorded identity."""


class RangeUnavailable(LedgerError):
    """Events of an inbox that were pruned, or are not there yet."""


class EventRefused(SemelError):
    """An inbox does not take an event of a request; nothing of that request is stored."""


class EventTooLarge(EventRefused):
    """An event is larger than an inbox takes."""


class RepeatDiffers(EventRefused):
    """Its source and id belong to an event with other content, which was stored before."""


class HeldInDoubt(SemelError):
    """A person must first decide what happened."""


class SinkBroken(SemelError):
    """A sink's own code fails with a programming error, and has not delivered anything before."""


class EventsParked(SemelError):
    """A batch job finished, but some of its events are parked and were not delivered.

    `result` is the value that `deliver_batch` would have returned.
    """

    result: object = None


def plain_text(text: object, limit: int = SHOWN_MAX) -> str:
    """Return external text for an error message: printable, one line, at most `limit` characters.

    Characters that do not print (line breaks, ESC, marks that change the writing direction, lone
    surrogates) are escaped as in Python; bytes are decoded as UTF-8. Truncated text ends in `...`.
    """
    if isinstance(text, bytes):
        text = text[: 4 * limit + 4].decode(errors="backslashreplace")
    plain = str(text)
    shown = printable(plain[: limit + 1])
    return shown if len(shown) <= limit else shown[: max(limit - len(_CUT), 0)] + _CUT[:limit]


def printable(text: str) -> str:
    """Return the text with each character that does not print escaped as in Python."""
    return "".join(each if each.isprintable() else _python_escape(each) for each in text)


def _python_escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
