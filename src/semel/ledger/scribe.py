"""The scribe commits with patience, and finds its own earlier success.

Every commit of the ledger makes its own requirements false. So a commit whose reply was lost can be
issued again, and a twin of it that arrives late changes nothing: it meets a `Conflict`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from semel.errors import LedgerUnavailable
from semel.ledger.clock import Clock, SystemClock
from semel.ledger.store import Conflict, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from semel.ledger.store import Key, Payload, Requirement, Store, Update

T = TypeVar("T")


@dataclass(frozen=True)
class Scribe:
    """Reads and commits for one pipeline; waits `patience_s` in all for a store that is away."""

    store: Store
    pipeline: str
    clock: Clock = field(default_factory=SystemClock)
    patience_s: float = 30.0

    def read(self, *keys: Key) -> Mapping[Key, Payload]:
        """Give the rows that exist among `keys`."""
        return self._patiently(lambda: self.store.read(keys))

    def read_one(self, key: Key) -> Payload | None:
        """Give the row at `key`, or None."""
        return self.read(key).get(key)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> list[tuple[Key, Payload]]:
        """Give the rows under `prefix`, in key order."""
        return self._patiently(
            lambda: list(self.store.scan(table, prefix, after=after, limit=limit))
        )

    def commit(
        self,
        requirements: Sequence[Requirement],
        updates: Sequence[Update],
        landed: Callable[[], bool] | None = None,
    ) -> None:
        """Commit; after a lost reply, `landed` says whether an earlier issue of this commit got
        through.

        Raises `Conflict` when it surely did not, `LedgerUnavailable` when patience is at its end.
        """
        unknown = False
        for pause in self._pauses():
            try:
                self.store.commit(requirements, updates)
            except LedgerUnavailable:
                unknown = True
                self.clock.sleep(pause)
            except Conflict:
                if unknown and (landed or (lambda: self.stands(updates)))():
                    return
                raise
            else:
                return
        raise LedgerUnavailable(
            f"pipeline {self.pipeline!r}: the ledger did not answer for {self.patience_s:g} s; "
            "nothing more is sent until it does. See that its server runs and can be reached, then "
            "restart the query"
        )

    def stands(self, updates: Sequence[Update]) -> bool:
        """Say whether every row stands just as `updates` put it, and none that they deleted."""
        wanted = {
            update.key: update.payload if isinstance(update, Put) else None
            for update in updates
            if isinstance(update, Put | Delete)
        }
        rows = self.read(*wanted)
        return all(rows.get(at) == payload for at, payload in wanted.items())

    def _patiently(self, call: Callable[[], T]) -> T:
        """Repeat a look at the store until it answers."""
        last: LedgerUnavailable | None = None
        for pause in self._pauses():
            try:
                return call()
            except LedgerUnavailable as error:
                last = error
                self.clock.sleep(pause)
        raise LedgerUnavailable(
            f"pipeline {self.pipeline!r}: the ledger did not answer for {self.patience_s:g} s "
            f"({last}). See that its server runs and can be reached, then restart the query"
        )

    def _pauses(self) -> Iterator[float]:
        """Give growing pauses that add up to the patience; always at least two tries."""
        spent, pause = 0.0, 0.05
        yield pause
        while spent < self.patience_s:
            yield pause
            spent += pause
            pause = min(pause * 2, 2.0)
