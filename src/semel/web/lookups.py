"""Runs calls that read or write the ledger outside the event loop.

Always true: the calls that wait are bounded; more are refused, and the client can come again.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from semel.web.problems import HttpProblem

if TYPE_CHECKING:
    from collections.abc import Callable

LOOKUPS_MAX = 256

T = TypeVar("T")


class Lookups:
    """Threads of their own for blocking calls; used by the thread of the event loop."""

    def __init__(self, name: str, threads: int = 1, waiting_max: int = LOOKUPS_MAX) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting_max = waiting_max
        self._waiting = 0

    def close(self) -> None:
        """Drop what did not begin yet, and end the threads."""
        self._threads.shutdown(cancel_futures=True)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call in a thread and return its result. Raises `HttpProblem` if too many wait, and
        what the call raises.
        """
        if self._waiting >= self._waiting_max:
            raise HttpProblem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too many requests wait to read the ledger; send this one again",
                retry_after_s=1,
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._waiting -= 1
