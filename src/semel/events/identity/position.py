"""Identity by position: source partition, offset, and ordinals of the events made from one offset.

- Positions of a source partition increase strictly; a repeated one is refused, never merged.
- The scope is the source partition (`topic/3`). An entity, if named, is an ordering key only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError, Diverged
from semel.events import columns, versions
from semel.events.identity.identity import Identity, Memory, names, once
from semel.events.ids.id_columns import Labels
from semel.events.ids.ids_by_entity import EntityIds
from semel.events.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Position(Identity):
    """The source provides the identity: no lookup, no counter, no shuffle."""

    topic: str = "topic"
    partition: str = "partition"
    offset: str = "offset"
    ordinals: tuple[str, ...] = ()
    entity: str | None = None

    kind: ClassVar[str] = "position"
    survives_lost_checkpoint: ClassVar[bool] = True
    uses_source_partitions: ClassVar[bool] = True
    may_grow: ClassVar[bool] = True
    assigns_ids: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ordinals", names(self.ordinals))

    @property
    def memory(self) -> Memory:
        """The offset of each source partition."""
        return Memory.POSITIONS

    @property
    def allows_update_mode(self) -> bool:
        """No: a position names one row."""
        return False

    def explain(self) -> str:
        """Return in words when two rows are the same event."""
        columns = f"{self.topic}, {self.partition}, {self.offset}"
        more = f" and {', '.join(self.ordinals)}" if self.ordinals else ""
        return (
            f"two rows are the same event when their position in the source is the same "
            f"({columns}{more}). A position that appears twice is refused, never merged."
        )

    def explain_order(self) -> str:
        """Return in words what the events of an entity are ordered by."""
        return "their offsets, within a source partition"

    def describe(self) -> dict[str, Any]:
        """Return the settings that must not change in a pipeline, as JSON."""
        return {
            "kind": self.kind,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "ordinals": list(self.ordinals),
            "entity": self.entity,
            "rules": versions.versions(),
        }

    def columns(self) -> list[str]:
        """Return the columns it reads, as dotted paths."""
        return once(self.topic, self.partition, self.offset, *self.ordinals, self.entity)

    def order_columns(self, schema: pa.Schema) -> list[str]:  # noqa: ARG002 - other columns are unused
        """Return offset and ordinals, which are unique within a source partition."""
        return once(self.offset, *self.ordinals)

    def progress_ids(self, rows: Rows) -> EntityIds:  # noqa: ARG002 - the offset is enough
        """Return no ids: the progress row has the offset."""
        return EntityIds.EMPTY

    def stamper(
        self,
        partition: str,
        *,
        last: Mapping[str, int] | None = None,  # noqa: ARG002 - only counters continue from a state
    ) -> PositionStamper:
        """Return a stamper for one source partition of one minibatch."""
        return PositionStamper(self, partition)

    def split(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        """Split the batch where its source partition changes, for a task that holds several."""
        if not batch.num_rows:
            return []
        if batch.num_rows > 1 and self._is_of_one(batch):
            return [(name, batch) for name, _ in self.split(batch.slice(0, 1))]
        topic = Labels.of(self._place(batch, self.topic, ""), self.topic)
        number = Labels.of(self._place(batch, self.partition, ""), self.partition)
        moves = (topic.codes[1:] != topic.codes[:-1]) | (number.codes[1:] != number.codes[:-1])
        edges = [0, *(np.flatnonzero(moves) + 1).tolist(), batch.num_rows]
        return [
            (self.name(topic[start], number[start]), batch.slice(start, stop - start))
            for start, stop in pairwise(edges)
        ]

    def require_partition(self, batch: pa.RecordBatch, partition: str) -> None:
        """Refuse rows of another source partition."""
        for name, part in self.split(batch):
            if name != partition:
                raise ConfigurationError(
                    f"a row of source partition {name!r} (offset "
                    f"{columns.column(part, self.offset)[0].as_py()}) came with those of "
                    f"{partition!r}; deliver the source's own partitions: no repartition, "
                    f"coalesce or union between the source and semel.deliver"
                )

    def _is_of_one(self, batch: pa.RecordBatch) -> bool:
        """Return whether every row is certainly of the first row's partition; compares two columns
        without encoding them.
        """
        topic, number = (columns.column(batch, path) for path in (self.topic, self.partition))
        if topic.null_count or number.null_count:
            return False
        return all(pc.all(pc.equal(each, each[0])).as_py() for each in (topic, number))

    def _place(self, batch: pa.RecordBatch, path: str, partition: str) -> pa.Array:
        return columns.required(batch, path, partition, "position")

    @staticmethod
    def name(topic: str, partition: str) -> str:
        """Return the source partition's name: `topic/3`. Only its last slash is a separator."""
        return f"{topic}/{partition.replace('%', '%25').replace('/', '%2F')}"


@dataclass(eq=False)
class PositionStamper:
    """Positions of one source partition; see `Stamper`."""

    identity: Position
    partition: str
    repeats: int = field(default=0, init=False)
    _next: int = field(default=0, init=False)
    _carried: list[pa.Array] | None = field(default=None, init=False)

    def stamp(self, batch: pa.RecordBatch) -> Rows:
        """Return the next rows of the source partition, in order of their offsets."""
        batch = columns.without_views(batch)
        self.identity.require_partition(batch, self.partition)
        parts = tuple(self._part(batch, path) for path in self._paths())
        entities = None
        if self.identity.entity is not None:
            path = self.identity.entity
            entity = columns.required(batch, path, self.partition, "entity", self._next)
            entities = Labels.of(entity, path)
        count = batch.num_rows
        self._require_increasing(parts)
        positions = np.arange(self._next, self._next + count, dtype=np.int64)
        self._next += count
        if count:
            self._carried = columns.copied(parts, count - 1)
        scopes = Labels.one(self.partition, count)
        return Rows(batch, positions, scopes, entities, parts, parts)

    def state(self) -> dict[str, int]:
        """Return an empty dict: no ids are assigned."""
        return {}

    def _paths(self) -> tuple[str, ...]:
        return (self.identity.offset, *self.identity.ordinals)

    def _part(self, batch: pa.RecordBatch, path: str) -> pa.Array:
        array = columns.required(batch, path, self.partition, "position", self._next)
        part = columns.ids(array, path)
        if path == self.identity.offset and not pa.types.is_int64(part.type):
            raise ConfigurationError(
                f"offset column {path!r} is {array.type}; an offset is an integer. Use given "
                f"identity (entity=, event=) for a source whose positions are not"
            )
        return part

    def _require_increasing(self, parts: tuple[pa.Array, ...]) -> None:
        steps = columns.steps(parts, self._carried)
        first = 1 if self._carried is None else 0
        if steps.same.any():
            where = self._event(parts, int(np.argmax(steps.same)) + first)
            raise ConfigurationError(
                f"{where} of source partition {self.partition!r} appears twice. A position that "
                f"repeats is not merged: if one input row makes several events, number them "
                f'(posexplode) and pass event=["offset", "ordinal"]'
            )
        falls = steps.falls
        if falls.any():
            at = int(np.argmax(falls)) + first
            raise Diverged(
                f"{self._event(parts, at)} of source partition {self.partition!r} came after "
                f"{self._event(parts, at - 1)}; positions must increase. Remove what reorders "
                f"or repeats rows between the source and semel.deliver (repartition, union, sort), "
                f"or use given identity"
            )

    def _event(self, parts: Sequence[pa.Array], row: int) -> str:
        """Return the name of a row of a batch; the row before the first is the carried row."""
        if row < 0 and self._carried is not None:
            parts, row = self._carried, 0
        values = [part[row].as_py() for part in parts]
        return ", ".join(
            f"{path} {value}" for path, value in zip(self._paths(), values, strict=True)
        )
