"""Identity by counter: semel assigns an entity's last id plus 1, 2, ... in the partition's order.

- The same state and the same rows produce the same ids, wherever the batches are split.
- The ids of an entity are gapless within a partition and continue from `last`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from semel.errors import ConfigurationError, Diverged
from semel.events import columns, versions
from semel.events.identity.identity import Identity, Memory, names, once
from semel.events.ids.id_columns import Labels
from semel.events.ids.ids_by_entity import EntityIds
from semel.events.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Counter(Identity):
    """For output that has no natural id; does not survive the loss of the checkpoint."""

    entity: str
    order_by: tuple[str, ...] = ()

    kind: ClassVar[str] = "counter"
    survives_lost_checkpoint: ClassVar[bool] = False
    uses_source_partitions: ClassVar[bool] = False
    may_grow: ClassVar[bool] = False
    assigns_ids: ClassVar[bool] = True
    all_columns_break_ties: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "order_by", names(self.order_by))

    @property
    def memory(self) -> Memory:
        """Nothing: the journal has the counters."""
        return Memory.NOTHING

    @property
    def allows_update_mode(self) -> bool:
        """Yes: every row gets a new number."""
        return True

    def explain(self) -> str:
        """Return in words when two rows are the same event."""
        return (
            f"semel counts the events of each {self.entity}: 1, 2, 3, ... A replay gives the "
            "same numbers to the same rows; nothing else distinguishes two events."
        )

    def explain_order(self) -> str:
        """Return in words what the events of an entity are ordered by."""
        return ", ".join(self.order_by) or "all columns"

    def describe(self) -> dict[str, Any]:
        """Return the settings that must not change in a pipeline, as JSON."""
        return {
            "kind": self.kind,
            "entity": self.entity,
            "order_by": list(self.order_by),
            "rules": versions.versions(),
        }

    def columns(self) -> list[str]:
        """Return the columns it reads, as dotted paths."""
        return once(*self.order_by, self.entity)

    def order_columns(self, schema: pa.Schema) -> list[str]:
        """Return the declared order and the entity; all columns break ties, as ids follow it."""
        for each in schema:
            if pa.types.is_map(each.type):
                raise ConfigurationError(
                    f"column {each.name!r} is a map, which has no order, but counted ids use "
                    "every column to order equal rows: deliver "
                    f"array_sort(map_entries({each.name})) instead"
                )
        return once(*self.order_by, self.entity, *schema.names)

    def progress_ids(self, rows: Rows) -> EntityIds:  # noqa: ARG002 - the journal has them
        """Return no ids: the journal has the counters."""
        return EntityIds.EMPTY

    def stamper(self, partition: str, *, last: Mapping[str, int] | None = None) -> CounterStamper:
        """Return a stamper for one partition of one minibatch that continues from the last ids."""
        return CounterStamper(self, partition, {} if last is None else last)


@dataclass(eq=False)
class CounterStamper:
    """Counted ids of one partition; see `Stamper`."""

    identity: Counter
    partition: str
    last: Mapping[str, int]
    repeats: int = field(default=0, init=False)
    _next: int = field(default=0, init=False)
    _slots: dict[str, int] = field(default_factory=dict, init=False)
    _ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), init=False)
    _carried: list[pa.Array] | None = field(default=None, init=False)

    def stamp(self, batch: pa.RecordBatch) -> Rows:
        """Return the next rows of the partition, each with the next id of its entity."""
        batch = columns.without_views(batch)
        path = self.identity.entity
        entity = columns.required(batch, path, self.partition, "entity", self._next)
        labels = Labels.of(entity, path)
        if self.identity.order_by:
            self._require_order(batch, entity)
        count = batch.num_rows
        positions = np.arange(self._next, self._next + count, dtype=np.int64)
        self._next += count
        return Rows(batch, positions, labels, labels, (pa.array(self._number(labels)),))

    def state(self) -> dict[str, int]:
        """Return the last id assigned to each entity of this partition so far."""
        return dict(zip(self._slots, self._ends.tolist(), strict=True))

    def _number(self, labels: Labels) -> NDArray[np.int64]:
        slots = self._find_slots(labels.texts)
        bases = self._ends[slots]
        counts = np.bincount(labels.codes, minlength=len(labels.texts))
        self._ends[slots] = bases + counts
        return bases[labels.codes] + _occurrence(labels.codes, counts)

    def _find_slots(self, texts: tuple[str, ...]) -> NDArray[np.intp]:
        """Return the slot of each entity's last id; one lookup per distinct entity of a batch."""
        known = len(self._slots)
        slots = list(map(self._slots.get, texts))
        if None in slots:
            new = [text for text, slot in zip(texts, slots, strict=True) if slot is None]
            self._slots.update(zip(new, range(known, known + len(new)), strict=True))
            begins = [self.last.get(text, 0) for text in new] if self.last else np.zeros(len(new))
            self._ends = np.concatenate([self._ends, np.array(begins, np.int64)])
            fresh = iter(range(known, known + len(new)))
            slots = [next(fresh) if slot is None else slot for slot in slots]
        return np.array(slots, np.intp)

    def _require_order(self, batch: pa.RecordBatch, entity: pa.Array) -> None:
        paths = (*self.identity.order_by, self.identity.entity)
        arrays = [columns.column(batch, path) for path in self.identity.order_by]
        keys = [
            columns.sortable(each, path)
            for each, path in zip([*arrays, entity], paths, strict=True)
        ]
        falls = columns.steps(keys, self._carried).falls
        if falls.any():
            row = int(np.argmax(falls)) + 1 - (self._carried is not None)
            raise Diverged(
                f"an event of entity {entity[row].as_py()!r} in partition {self.partition!r} "
                f"(position {self._next + row}) is not in the order ({', '.join(paths)}); counted "
                f"ids follow the order, so the partition must be sorted first"
            )
        if batch.num_rows:
            self._carried = columns.copied(keys, batch.num_rows - 1)


def _occurrence(codes: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each row its number among the rows of its code, from 1."""
    count = len(codes)
    ranks = np.arange(1, count + 1, dtype=np.int64)
    ranks -= np.repeat(np.cumsum(counts) - counts, counts)
    if (codes[1:] >= codes[:-1]).all():
        return ranks
    bits = max(count - 1, 1).bit_length()
    # Code and row in one integer: a plain sort is several times faster than a stable argsort.
    words = (codes.astype(np.int64) << bits) | np.arange(count, dtype=np.int64)
    words.sort()
    placed = np.empty(count, np.int64)
    placed[words & ((1 << bits) - 1)] = ranks
    return placed
