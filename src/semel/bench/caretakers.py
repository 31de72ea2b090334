"""Caretakers: each clears up after this process once it is gone, however it went.

A caretaker is a shell that waits at a pipe of ours, which closes when we let it go, and when we are
killed.
"""

from __future__ import annotations

import subprocess
from typing import Any

_WITHIN_S = 60


class Caretaker:
    """Runs `script` when this process lets it go, or ends; `$1`, `$2`, ... are the arguments."""

    def __init__(self, script: str, *arguments: str, **runs_as: Any) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own words
            ["/bin/sh", "-c", f"read _\n{script}", "caretaker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
            cwd="/",
            **runs_as,
        )

    def close(self) -> None:
        """Let it do its work, and wait until that is done."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=_WITHIN_S)
