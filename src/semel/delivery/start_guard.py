"""Prevents pipelines from starting while a command only inspects a user's module.

Always true: after `only_look`, no pipeline starts in this process, not even from a thread that the
module left behind; so there is one flag per process, and it is never cleared.
"""

from __future__ import annotations

from semel.errors import ConfigurationError

_looking: list[str] = []


def only_look(doing: str) -> None:
    """Refuse to start any pipeline for the rest of the life of this process.

    `doing` completes "start() is refused while ...".
    """
    _looking[:] = [doing]


def refuse_while_looking(pipeline: str, call: str) -> None:
    """Raise `ConfigurationError` if `call` would deliver while a command only looks."""
    for doing in _looking:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: {call} is refused while {doing}; nothing was started and "
            'nothing was sent. Put what starts it under `if __name__ == "__main__":`, and name an '
            "object that does not start it"
        )
