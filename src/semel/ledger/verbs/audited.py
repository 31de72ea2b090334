"""What the ledger knows of the audit log: files of minibatches, and of resolved parked events.

Always true:
- a file of a partition is named by the commit that completes it, so by the one attempt that counts;
- a parked event names its file before the file is written, in one commit that requires the run and
  the row as they were read. It is final then, so whoever writes the file writes the same;
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
from semel.ledger.verbs.parked import read_parked
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from semel.events import Minibatch
    from semel.ledger.client import LedgerClient
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
    """The parked events of one sink whose outcome is final. Used by the driver."""

    client: LedgerClient
    sink: str

    def mark(self, opening: OpenMinibatch, name: str, rows_max: int) -> bool:
        """Write into at most `rows_max` of them, which are not recorded yet, that the file `name`
        records them; return whether there was one, and the run still has the pipeline.
        """
        found = read_parked(self.client, self.sink)
        chosen = list(islice((each for each in found if needs_record(each[1])), rows_max))
        if not chosen:
            return False
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

    def named(self) -> dict[str, list[ParkedRow]]:
        """Return those that name a file, by its name, in their order."""
        files: dict[str, list[ParkedRow]] = {}
        for _, row, _ in read_parked(self.client, self.sink):
            if row.recorded is not None and row.state in _RESOLVED:
                files.setdefault(row.recorded, []).append(row)
        return files
