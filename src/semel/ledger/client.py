"""The ledger's client: repeats calls while the store is away, and recognises its own success.

Every commit of the ledger makes its own requirements false. So a commit whose reply was lost can be
issued again, and a late copy of it changes nothing: it meets a `Conflict`.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from semel.errors import LedgerUnavailable
from semel.ledger.keys import OPEN_TABLE, make_key
from semel.ledger.store.commit import Conflict, Delete, Put
from semel.runtime import Clock, SystemClock
from semel.urls import conceal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from semel.ledger.store.commit import Key, Payload, Requirement, Store, Update

T = TypeVar("T")

LOG_EVERY_S = 5.0
"""How often the log reports that the store is still away."""

log = logging.getLogger("semel")


@dataclass(frozen=True, slots=True)
class CommitFigures:
    """What a client asked of the store.

    Attributes:
        commits: how many commits were made or refused; a repeated one counts once.
        seconds: how long they took, with their repetitions and the pauses between them.
        errors: how often the store did not answer, reads included.
    """

    commits: int = 0
    seconds: float = 0.0
    errors: int = 0

    def __add__(self, other: CommitFigures) -> CommitFigures:
        return CommitFigures(
            self.commits + other.commits, self.seconds + other.seconds, self.errors + other.errors
        )


class _Used:
    """The figures of a client, counted by several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.figures = CommitFigures()


@dataclass(frozen=True)
class LedgerClient:
    """Reads and commits for one pipeline, or one inbox. A store that is away is tried again for
    `patience_s`, tries and pauses together, and at least twice.
    """

    store: Store
    pipeline: str
    clock: Clock = field(default_factory=SystemClock)
    patience_s: float = 30.0
    kind: str = "pipeline"
    """What `pipeline` names, for messages."""
    known_as: str = ""
    """The name under which destinations know the pipeline, if it was renamed."""
    hidden: tuple[str, ...] = field(default=(), repr=False)
    """Texts that nothing which is recorded may have: secrets of the pipeline's file."""
    _logged: set[tuple[str, ...]] = field(default_factory=set, compare=False, repr=False)
    used: _Used = field(default_factory=_Used, compare=False, repr=False)
    """What this client has asked of the store so far: `used.figures`."""

    @cached_property
    def open_key(self) -> Key:
        """The key of the row of the open minibatch, which nearly every commit requires."""
        return make_key(OPEN_TABLE, self.pipeline)

    @property
    def at_sinks(self) -> str:
        """The name under which destinations know the pipeline: its first one."""
        return self.known_as or self.pipeline

    def conceal(self, text: str) -> str:
        """Return a text of a sink or a destination as it may be recorded: without secrets."""
        return conceal(text, self.hidden)

    def first_time(self, *what: str) -> bool:
        """Whether it is the first time that this client is asked about `what`: a message that is
        logged once for a run and a process.
        """
        new = what not in self._logged
        self._logged.add(what)
        return new

    def read(self, *keys: Key) -> Mapping[Key, Payload]:
        """Return the rows that exist among `keys`."""
        return self._patiently(lambda: self.store.read(keys), self.clock.monotonic())

    def read_one(self, key: Key) -> Payload | None:
        """Return the row at `key`, or None."""
        return self.read(key).get(key)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> list[tuple[Key, Payload]]:
        """Return the rows under `prefix`, in key order."""
        return self._patiently(
            lambda: list(self.store.scan(table, prefix, after=after, limit=limit)),
            self.clock.monotonic(),
        )

    def commit(
        self,
        requirements: Sequence[Requirement],
        updates: Sequence[Update],
        landed: Callable[[], bool] | None = None,
    ) -> float:
        """Commit; after a lost reply, `landed` returns whether an earlier try of this commit
        passed. Return the own monotonic clock just before the store was first asked, from which a
        lease counts.

        Raises `Conflict` if it surely did not, `LedgerUnavailable` if the store stays away.
        """
        began, unknown = self.clock.monotonic(), False

        def commit() -> Conflict | None:
            nonlocal unknown
            try:
                self.store.commit(requirements, updates)
            except LedgerUnavailable:
                unknown = True
                raise
            except Conflict as conflict:
                return conflict
            return None

        until = "nothing more is sent until it can. " if self.kind == "pipeline" else ""
        try:
            conflict = self._patiently(commit, began, until)
        finally:
            seconds = self.clock.monotonic() - began
            with self.used.lock:
                before = self.used.figures
                self.used.figures = CommitFigures(
                    before.commits + 1, before.seconds + seconds, before.errors
                )
        if conflict is None or (unknown and (landed or (lambda: self.stands(updates)))()):
            return began
        raise conflict

    def stands(self, updates: Sequence[Update]) -> bool:
        """Whether every row is as `updates` put it, and none is there that they deleted."""
        wanted = {
            update.key: update.payload if isinstance(update, Put) else None
            for update in updates
            if isinstance(update, Put | Delete)
        }
        rows = self.read(*wanted)
        return all(rows.get(at) == payload for at, payload in wanted.items())

    def _patiently(self, call: Callable[[], T], began: float, until: str = "") -> T:
        """Repeat a call to the store until it answers, with growing pauses."""
        logged = began
        pause, tries = 0.05, 0
        while True:
            try:
                return call()
            except LedgerUnavailable as error:
                tries += 1
                with self.used.lock:
                    self.used.figures += CommitFigures(errors=1)
                now = self.clock.monotonic()
                if tries > 1 and now - began >= self.patience_s:
                    again = "restart the query" if self.kind == "pipeline" else "try again"
                    raise LedgerUnavailable(
                        f"{self.kind} {self.pipeline!r}: the ledger could not be used for "
                        f"{now - began:.0f} s, in {tries} tries; {until}The last error: {error}. "
                        f"Remove its cause, then {again}"
                    ) from error
                if now - logged >= LOG_EVERY_S:
                    log.warning(
                        "%s %r: the ledger could not be used for %.0f s, trying again: %s",
                        self.kind,
                        self.pipeline,
                        now - began,
                        error,
                    )
                    logged = now
            self.clock.sleep(pause)
            pause = min(pause * 2, 2.0)
