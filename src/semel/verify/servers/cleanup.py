"""A script that cleans up after this process when it ends, also when it is killed.

A shell waits on a pipe from this process. The pipe closes when `close` is called and when this
process ends.
"""

from __future__ import annotations

import subprocess
from typing import Any

_WITHIN_S = 60


class CleanupAtExit:
    """Runs `script` on `close`, or when this process ends; `$1`, `$2`, ... are the arguments."""

    def __init__(self, script: str, *arguments: str, **runs_as: Any) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own words
            ["/bin/sh", "-c", f"read _\n{script}", "cleanup", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
            cwd="/",
            **runs_as,
        )

    def close(self) -> None:
        """Run the script now, and wait until it has ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=_WITHIN_S)
