"""Commands that import a user's module only look at it: while they do, no pipeline starts.

Always true: once a command has said that it looks, nothing starts in this process, not even from a
thread that the module left behind; so there is one flag for the process, and nothing takes it back.
"""

from __future__ import annotations

from semel.errors import ConfigurationError

_looking: list[str] = []


def only_look(doing: str) -> None:
    """Refuse every start of a pipeline from here on, as long as this process lives.

    `doing` completes "start() is refused while ...".
    """
    _looking[:] = [doing]


def refuse_while_looking(pipeline: str, call: str) -> None:
    """Raise `ConfigurationError` where `call` would deliver while a command only looks."""
    for doing in _looking:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: {call} is refused while {doing}; nothing was started and "
            'nothing was sent. Put what starts it under `if __name__ == "__main__":`, and name an '
            "object that does not start it"
        )
