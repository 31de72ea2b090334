"""What a sink raises and nobody classified: an unknown outcome, with the error that caused it."""

from __future__ import annotations

from semel.errors import OutcomeUnknown, plain_text

PROGRAMMING = (
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""Errors of the code rather than of the destination, while nothing was delivered yet."""


class Unclassified(OutcomeUnknown):
    """It may have arrived; its `__cause__` is what the sink raised."""

    @classmethod
    def of(cls, error: Exception) -> Unclassified:
        """Make it of an error that is not one of semel's."""
        made = cls(f"{type(error).__name__}: {plain_text(error)}")
        made.__cause__ = error
        return made


def is_programming(error: BaseException | None) -> bool:
    """Whether an error, or what caused an unknown outcome, is one of the code."""
    if isinstance(error, Unclassified):
        error = error.__cause__
    return isinstance(error, PROGRAMMING)
