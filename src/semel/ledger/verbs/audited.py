"""What the ledger knows of the audit log: files of minibatches, and of resolved parked events.

Always true:
- a file of a partition is named by the commit that completes it, so by the one attempt that counts;
- a parked event names its file before the file is written, in one commit that requires the run and
  the row as they were read. It is final then, so each process that writes the file writes the same;
- a parked event that does not name its file is not pruned while the pipeline has an audit log.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from semel.ledger.keys import STREAMS_TABLE, make_prefix
from semel.ledger.rows import ParkedRow, PartitionRow, minibatch_of
from semel.ledger.store.commit import Conflict, Equals, Put
from semel.ledger.verbs.divergence import comes_anew
from semel.ledger.verbs.parked import scan_parked
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from semel.events import Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key
    from semel.ledger.verbs.open import OpenMinibatch

_RESOLVED = (ParkedState.DELIVERED, ParkedState.DISCARDED)


def audit_parts(
    client: LedgerClient, sink: str | None = None, minibatch: Minibatch | None = None
) -> dict[str, Any]:
    """Return the files of the complete partitions whose rows are kept, by name: of one sink and
    minibatch, or of all.
    """
    parts: list[str | int] = [each for each in (client.pipeline, sink) if each is not None]
    if minibatch is not None:
        parts += astuple(minibatch)
    found: dict[str, Any] = {}
    for at, text in client.scan(STREAMS_TABLE, make_prefix(*parts)):
        if minibatch is None or minibatch_of(at) == minibatch:
            found |= PartitionRow.load(text, at).audited or {}
    return found


def needs_record(row: ParkedRow) -> bool:
    """Whether the outcome of a parked event is to be recorded, and is not yet. What a judgement
    discarded is delivered again, and recorded then.
    """
    return row.state in _RESOLVED and row.recorded is None and not comes_anew(row)


@dataclass(frozen=True)
class ResolvedRows:
    """The parked events of one sink whose outcome is final, page by page. Used by the driver."""

    client: LedgerClient
    sink: str

    def mark(
        self, opening: OpenMinibatch, make_name: Callable[[], str], rows_max: int
    ) -> Iterator[tuple[str, list[ParkedRow]]]:
        """Write into each that is not recorded yet which file records it, and yield the file and
        its rows after the commit that did so: at most `rows_max`. It ends early if the run was
        replaced, or if a row changed meanwhile.
        """
        needed = (each for each in self._rows() if needs_record(each[1]))
        while chosen := list(islice(needed, rows_max)):
            name = make_name()
            if not self._name(opening, name, chosen):
                return
            yield name, [row for _, row, _ in chosen]

    def _name(
        self, opening: OpenMinibatch, name: str, chosen: Sequence[tuple[Key, ParkedRow, str]]
    ) -> bool:
        marked = [(at, replace(row, recorded=name).dump()) for at, row, _ in chosen]
        first, after = marked[0]
        try:
            self.client.commit(
                [Equals(self.client.open_key, opening.text)]
                + [Equals(at, text) for at, _, text in chosen],
                [Put(at, text) for at, text in marked],
                lambda: self.client.read_one(first) == after,
            )
        except Conflict:
            return False
        return True

    def names(self) -> list[str]:
        """Return the files that are named."""
        return sorted({name for _, row, _ in self._rows() if (name := _file_of(row)) is not None})

    def named(self, names: Collection[str]) -> dict[str, list[ParkedRow]]:
        """Return the rows that name one of these files, by its name, as they were named."""
        files: dict[str, list[ParkedRow]] = {}
        for _, row, _ in self._rows() if names else ():
            name = _file_of(row)
            if name is not None and name in names:
                files.setdefault(name, []).append(row)
        return files

    def _rows(self) -> Iterator[tuple[Key, ParkedRow, str]]:
        """Yield every parked row of the sink, in the order of their keys."""
        for page in scan_parked(self.client, make_prefix(self.client.pipeline, self.sink)):
            for at, text in page:
                yield at, ParkedRow.load(text, at), text


def _file_of(row: ParkedRow) -> str | None:
    return row.recorded if row.state in _RESOLVED else None
