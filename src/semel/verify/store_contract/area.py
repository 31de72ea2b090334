"""What the cases of the store contract are written with: tables of their own, checks, and threads.

Always true:
- a case works in tables of its own inside the ledger's table (`verify-TOKEN-...`), which no
  pipeline uses, and its rows are removed when it ends, however it ends;
- no case waits for ever: threads that do not end within `PATIENCE_S` are a finding.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from semel.ledger import dump_payload, load_payload, make_key
from semel.ledger.store import Conflict, Key, Put, Sweep
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from semel.ledger.store import Payload, Requirement, Store, Update

T = TypeVar("T")

PATIENCE_S = 600.0
"""How long the threads of one case may take together."""

ONE, TWO = dump_payload({"n": 1}), dump_payload({"n": 2})


class PromiseBroken(Exception):
    """The store does not do what every store promises."""


@dataclass
class Area:
    """Tables of one case, which no pipeline and no other case uses."""

    open: Callable[[], Store]
    """Open the store once more."""
    token: str = field(default_factory=lambda: secrets.token_hex(6))
    _tables: set[str] = field(default_factory=set)
    _stack: ExitStack = field(default_factory=ExitStack)
    _store: Store | None = None

    @property
    def store(self) -> Store:
        """The opening that the case works with, opened at its first use."""
        if self._store is None:
            self._store = self.another()
        return self._store

    def another(self) -> Store:
        """Return another opening of the same store; it is closed when the case ends."""
        return self._stack.enter_context(closing(self.open()))

    def table(self, name: str = "t") -> str:
        """Return the name of a table of this case."""
        table = f"verify-{self.token}-{name}"
        self._tables.add(table)
        return table

    def key(self, *parts: str | int, table: str = "t") -> Key:
        """Return the key of a row in a table of this case."""
        return make_key(self.table(table), *parts)

    def raw(self, text: str) -> Key:
        """Return a key with exactly this text."""
        return Key(self.table(), text)

    def rows(self, table: str = "t", start: str = "") -> dict[str, Payload]:
        """Return the rows of a table in the order of the store."""
        return {found.key: payload for found, payload in self.store.scan(self.table(table), start)}

    def keys(self, table: str = "t", start: str = "") -> list[str]:
        """Return the keys of a table in the order of the store."""
        return [found.key for found, _ in self.store.scan(self.table(table), start)]

    def leave(self) -> None:
        """Remove all rows of the case with a fresh opening, and close all openings."""
        with self._stack:
            if self._tables:
                self.another().commit([], [Sweep(each, "") for each in sorted(self._tables)])


def require_equal(found: object, wanted: object, what: str) -> None:
    """Raise `PromiseBroken` unless a value is the expected one."""
    if found != wanted:
        raise PromiseBroken(f"{what}: found {_short(found)}, expected {_short(wanted)}")


def require(true: bool, what: str) -> None:
    """Raise `PromiseBroken` unless something is true."""
    if not true:
        raise PromiseBroken(what)


def require_conflict(
    store: Store, requirements: Sequence[Requirement], updates: Sequence[Update], at: Key | None
) -> None:
    """Raise `PromiseBroken` unless a commit is refused, because of the row `at` if given."""
    try:
        store.commit(requirements, updates)
    except Conflict as conflict:
        if at is not None:
            require_equal(conflict.key, at, "the key of the Conflict")
    else:
        raise PromiseBroken(f"a commit passed although {_short(requirements)} does not hold")


def require_refused(store: Store, update: Put, error: type[Exception]) -> None:
    """Raise `PromiseBroken` unless the store refuses to write a row, with this error."""
    try:
        store.commit([], [update])
    except error:
        return
    raise PromiseBroken(f"a commit of {_short(update)} must raise {error.__name__}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


def passes(act: Callable[[], None]) -> bool:
    """Whether a commit passed; a Conflict is an answer, anything else is an error."""
    try:
        act()
    except Conflict:
        return False
    return True


def at_once(acts: Sequence[Callable[[], T]]) -> list[T]:
    """Do all acts at once, each in a thread, and return what they return."""
    start = threading.Barrier(len(acts))
    done: dict[int, T] = {}
    failed: list[BaseException] = []

    def one(index: int) -> None:
        try:
            start.wait()
            done[index] = acts[index]()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the case
            failed.append(error)

    threads = [
        threading.Thread(target=one, args=(index,), daemon=True) for index in range(len(acts))
    ]
    for thread in threads:
        thread.start()
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_S
    for thread in threads:
        thread.join(max(0.0, deadline - clock.monotonic()))
        require(not thread.is_alive(), f"the store blocked a thread for {PATIENCE_S:g} s")
    if failed:
        raise failed[0]
    return [done[index] for index in range(len(acts))]


def commit_at_once(acts: Iterable[Callable[[], None]]) -> list[bool]:
    """Do all commits at once and return which of them passed."""
    return at_once([partial(passes, act) for act in acts])


def counter(store: Store, at: Key) -> tuple[int, Payload | None]:
    """Return the number in a row, 0 if there is none, and its payload."""
    payload = store.read([at]).get(at)
    return (load_payload(payload)["n"] if payload else 0), payload


def puts(keys: Iterable[Key], payload: Payload = ONE) -> list[Update]:
    """Return updates that write the same payload at each key."""
    return [Put(each, payload) for each in keys]
