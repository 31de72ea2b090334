"""The errors of semel, and what each one says about the events it names.

```
SemelError
├── ConfigurationError        the pipeline as written cannot keep its promise; no event moved yet
│   └── MissingExtra          an optional dependency is missing (the message has the pip line)
├── DeliveryError             what a sink says about a chunk - sink authors raise these
│   ├── NotDelivered          nothing arrived; trying again is safe (retry_after_s)
│   ├── Rejected              nothing arrived, and nothing ever will
│   └── OutcomeUnknown        it may have arrived - and any foreign exception means this
├── LedgerError
│   ├── LedgerUnavailable     the store cannot be reached, or its reply was lost
│   ├── Fenced                a later attempt or run has it
│   └── Diverged              a replay produced other content under a recorded identity
├── HeldInDoubt               a person has to say what happened first (policy `stop`)
├── SinkBroken                a sink's own code fails (NameError, ...) and never succeeded before
└── EventsParked              a batch job is finished, and events of it are parked
```

Every error survives pickling, because it travels from an executor to the driver. Text that comes
from outside enters a message through `plain_text`: on one line, escaped and cut.
"""

from __future__ import annotations

SHOWN_MAX = 500
"""How many characters of a foreign text an error shows, where nothing else is said."""

_CUT = "..."


class SemelError(Exception):
    """Anything semel says on purpose. The message names what it is about and what to do next."""


class ConfigurationError(SemelError):
    """The pipeline as written cannot keep its promise; raised before any event moves."""


class MissingExtra(ConfigurationError):
    """An optional dependency is not installed; the message says which, and has the pip line."""


class DeliveryError(SemelError):
    """What a sink says about a chunk. Sink authors raise its three kinds."""


class NotDelivered(DeliveryError):
    """Nothing arrived; trying again is safe, after `retry_after_s` where it is known."""

    def __init__(self, message: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class Rejected(DeliveryError):
    """Nothing arrived, and nothing ever will: the event itself is at fault."""


class OutcomeUnknown(DeliveryError):
    """It may have arrived. Any foreign exception out of a sink means this."""


class LedgerError(SemelError):
    """What the ledger says."""


class LedgerUnavailable(LedgerError):
    """The store cannot be reached, or its reply was lost: nobody knows if it committed."""


class Fenced(LedgerError):
    """A later attempt or run has it; this one stops and changes nothing more."""


class Diverged(LedgerError):
    """A replay produced other content under a recorded identity."""


class HeldInDoubt(SemelError):
    """A person has to say what happened first."""


class SinkBroken(SemelError):
    """A sink's own code fails with a programming error, and has not delivered anything before."""


class EventsParked(SemelError):
    """A batch job is finished, and events of it are parked: not all of it was delivered.

    `result` is what `deliver_batch` would have returned.
    """

    result: object = None


def plain_text(text: object, limit: int = SHOWN_MAX) -> str:
    """Give foreign text as it may stand in an error: printable, on one line, `limit` characters.

    What does not print (line breaks, ESC, marks that turn the direction of writing, lone
    surrogates) is escaped as in Python; bytes are read as UTF-8. Text that was cut ends in `...`.
    """
    if isinstance(text, bytes):
        text = text[: 4 * limit + 4].decode(errors="backslashreplace")
    told = str(text)
    shown = printable(told[: limit + 1])
    return shown if len(shown) <= limit else shown[: max(limit - len(_CUT), 0)] + _CUT[:limit]


def printable(text: str) -> str:
    """Return the text with each character that does not print escaped as in Python."""
    return "".join(each if each.isprintable() else _python_escape(each) for each in text)


def _python_escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
