"""Threads that append at the same time share one commit.

Always true:
- one thread commits at a time, the requests of all that wait; the others get their answers from it;
- requests are committed in the order in which they came.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from semel.errors import LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.errors import SemelError
    from semel.streams.new_event import Prepared, Stored

    Request = list[Prepared] | SemelError
    Answer = list[Stored] | SemelError
    Commit = Callable[[list[Request]], list[Answer]]

COMMIT_EVENTS_MAX = 10_000
"""A commit that has so many events takes no further requests."""


class CommitQueue:
    """The requests that wait for a commit."""

    def __init__(self) -> None:
        self._committing = threading.Lock()
        self._waiting: deque[_Waiting] = deque()

    def serve(self, requests: list[Request], commit: Callable[..., list[Answer]]) -> list[Answer]:
        """Commit requests, together with those that wait, and return their answers."""
        mine = _Waiting(requests)
        self._waiting.append(mine)
        with self._committing:
            while not mine.served:
                self._commit(commit)
        if mine.failure is not None:
            raise mine.failure
        return mine.answers

    def _commit(self, commit: Commit) -> None:
        batch: list[_Waiting] = []
        events = 0
        while self._waiting and (not batch or events < COMMIT_EVENTS_MAX):
            batch.append(self._waiting.popleft())
            events += batch[-1].events
        try:
            answers = iter(commit([request for each in batch for request in each.requests]))
        except Exception as failure:  # noqa: BLE001 - raised in each thread that waits for it
            for each in batch:
                each.fail(failure)
            return
        except BaseException:
            for each in batch:
                each.fail(LedgerUnavailable("the append was interrupted, and may have happened"))
            raise
        for each in batch:
            each.answer([next(answers) for _ in each.requests])


class _Waiting:
    """The requests of one thread, and what became of them."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.events = sum(len(each) for each in requests if isinstance(each, list))
        self.answers: list[Answer] = []
        self.failure: BaseException | None = None
        self.served = False

    def answer(self, answers: list[Answer]) -> None:
        self.answers, self.served = answers, True

    def fail(self, failure: BaseException) -> None:
        self.failure, self.served = failure, True
