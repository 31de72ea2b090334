"""Identity by columns: the producer, the ingress or the query itself assigned every event its id.

- Rows are in the declared order, so repeats of an event with the same content are neighbours.
- The same (entity, id) with the same content is one event; with other content it is `Diverged`.
- With `increasing`, the ids of an entity increase within the partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import xxhash

from semel.errors import ConfigurationError, Diverged
from semel.events import columns, versions
from semel.events.digests import digest
from semel.events.identity.identity import Identity, Memory, names, once
from semel.events.ids.id_columns import Labels
from semel.events.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semel.events.event import EventID
    from semel.events.ids.ids_by_entity import EntityIds


@dataclass(frozen=True)
class Given(Identity):
    """Columns hold the identity: `entity` and one or several `event` columns."""

    entity: str
    event: tuple[str, ...]
    increasing: bool = False
    order_by: tuple[str, ...] = ()

    kind: ClassVar[str] = "given"
    survives_lost_checkpoint: ClassVar[bool] = True
    uses_source_partitions: ClassVar[bool] = False
    may_grow: ClassVar[bool] = False
    assigns_ids: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "event", names(self.event))
        object.__setattr__(self, "order_by", names(self.order_by))
        if not self.event:
            raise ConfigurationError('given identity needs an event column: event="payment_id"')

    def describe(self) -> dict[str, Any]:
        """Return the settings that must not change in a pipeline, as JSON."""
        return {
            "kind": self.kind,
            "entity": self.entity,
            "event": list(self.event),
            "increasing": self.increasing,
            "order_by": list(self.order_by),
            "rules": versions.versions(),
        }

    def columns(self) -> list[str]:
        """Return the columns it reads, as dotted paths."""
        return once(*self.order_by, self.entity, *self.event)

    @property
    def memory(self) -> Memory:
        """The highest id of each entity if ids increase, otherwise every id."""
        return Memory.HIGHEST_IDS if self.increasing else Memory.ALL_IDS

    @property
    def id_columns(self) -> tuple[str, ...]:
        """The event columns."""
        return self.event

    @property
    def allows_update_mode(self) -> bool:
        """Whether an id has several columns: one of them can be a version."""
        return len(self.event) > 1

    def explain(self) -> str:
        """Return in words when two rows are the same event."""
        return (
            f"two rows are the same event when {self.entity} and "
            f"{', '.join(self.event)} are equal. In one minibatch the same id with the same "
            "content is one event; with different content the pipeline stops (Diverged)."
        )

    def explain_order(self) -> str:
        """Return in words what the events of an entity are ordered by."""
        return ", ".join(self.order_by or self.event)

    def require_order(self, batch: pa.RecordBatch) -> None:
        """Raise `ConfigurationError` if events are ordered by ids that are not numbers."""
        if self.order_by:
            return
        rows = self.stamper("").stamp(batch)
        for path, ids in zip(self.event, rows.ids, strict=True):
            if not pa.types.is_int64(ids.type):
                raise ConfigurationError(
                    f"event column {path!r} is not a number, so it does not order the events of an "
                    'entity. Pass order_by="created_at" (a column that does), or '
                    "order=False if order does not matter"
                )

    def order_columns(self, schema: pa.Schema | None = None) -> list[str]:  # noqa: ARG002 - other columns are unused
        """Return the declared order, or that of the ids, and the entity."""
        return list(dict.fromkeys((*(self.order_by or self.event), self.entity, *self.event)))

    def progress_ids(self, rows: Rows) -> EntityIds:
        """Return the ids of the rows, or the highest of each entity if ids increase."""
        return rows.last_id_sets() if self.increasing else rows.id_sets()

    def stamper(
        self,
        partition: str,
        *,
        last: Mapping[str, int] | None = None,  # noqa: ARG002 - only counters continue from a state
    ) -> GivenStamper:
        """Return a stamper for one partition of one minibatch."""
        return GivenStamper(self, partition)


class Seen:
    """The set of events seen, for the one case where a repeat need not be next to its original;
    checked one batch at a time.

    - 16 bytes per event: two independent 64-bit hashes; a false alarm needs both to collide.
    - Runs are merged as they double, so adding n events costs O(n log n) in total.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []

    def add(self, rows: Rows) -> int | None:
        """Add these rows; return the index of one that was there before or is repeated, or None."""
        if not len(rows):
            return None
        left, right = _hash(rows, 0), _hash(rows, 1)
        order = np.argsort(left, kind="stable")
        left, right = left[order], right[order]
        twice = (left[1:] == left[:-1]) & (right[1:] == right[:-1])
        if twice.any():
            return int(order[int(np.argmax(twice)) + 1])
        for known_left, known_right in self._runs:
            # Two entries with the same first hash may be adjacent: check both.
            at = np.searchsorted(known_left, left)
            for step in (0, 1):
                near = np.minimum(at + step, len(known_left) - 1)
                hit = (known_left[near] == left) & (known_right[near] == right)
                if hit.any():
                    return int(order[int(np.argmax(hit))])
        self._keep(left, right)
        return None

    def _keep(self, left: NDArray[np.uint64], right: NDArray[np.uint64]) -> None:
        while self._runs and len(self._runs[-1][0]) <= len(left):
            other_left, other_right = self._runs.pop()
            left, right = np.concatenate([other_left, left]), np.concatenate([other_right, right])
            order = np.argsort(left, kind="stable")
            left, right = left[order], right[order]
        self._runs.append((left, right))


@dataclass(eq=False)
class GivenStamper:
    """Given ids of one partition; see `Stamper`."""

    identity: Given
    partition: str
    repeats: int = field(default=0, init=False)
    _next: int = field(default=0, init=False)
    _carried: tuple[list[pa.Array], pa.RecordBatch] | None = field(default=None, init=False)
    _seen: Seen = field(default_factory=Seen, init=False)
    _last: dict[str, EventID] = field(default_factory=dict, init=False)

    def stamp(self, batch: pa.RecordBatch) -> Rows:
        """Return the next rows of the partition, without those that repeat an event."""
        rows = self._identified(columns.without_views(batch))
        rows = self._without_repeats(rows)
        if self.identity.order_by and self.identity.increasing:
            self._require_increasing(rows)
        elif self.identity.order_by:
            again = self._seen.add(rows)
            if again is not None:
                raise Diverged(
                    f"{self._event(rows, again)} appears twice, with another {self._order_text()}; "
                    f"an id must name one event. Drop the repeats before semel.deliver "
                    f"(dropDuplicates), or give them different ids"
                )
        self._next += len(rows)
        return rows

    def state(self) -> dict[str, int]:
        """Return an empty dict: no ids are assigned."""
        return {}

    def _identified(self, batch: pa.RecordBatch) -> Rows:
        path = self.identity.entity
        entity = self._column(batch, path, "entity")
        scopes = Labels.of(entity, path)
        ids = {
            path: columns.ids(self._column(batch, path, "event id"), path)
            for path in self.identity.event
        }
        keys = {path: columns.sortable(entity, path), **ids}
        order = self.identity.order_columns()
        for path in order:
            if path not in keys:
                keys[path] = columns.sortable(self._column(batch, path, "order"), path)
        positions = np.arange(self._next, self._next + batch.num_rows, dtype=np.int64)
        sort_key = tuple(keys[path] for path in order)
        return Rows(batch, positions, scopes, scopes, tuple(ids.values()), sort_key)

    def _column(self, batch: pa.RecordBatch, path: str, role: str) -> pa.Array:
        return columns.required(batch, path, self.partition, role, self._next)

    def _without_repeats(self, rows: Rows) -> Rows:
        end = rows.batch.num_rows - 1
        if end < 0:
            return rows
        carried = None if self._carried is None else self._carried[0]
        steps = columns.steps(rows.order, carried)
        # A batch's first row has a predecessor only if there was an earlier batch.
        first = np.zeros(0 if carried else 1, np.bool_)
        falls, same = np.concatenate([first, steps.falls]), np.concatenate([first, steps.same])
        if falls.any():
            at = int(np.argmax(falls))
            raise Diverged(
                f"{self._event(rows, at)} is not in the declared order "
                f"({self._order_text()}); the partition must be sorted by it"
            )
        repeats = int(same.sum())
        if repeats:
            self._require_same_content(rows, same)
            self.repeats += repeats
        self._carried = (
            columns.copied(rows.order, end),
            rows.batch.take(pa.array([end], pa.int64())),
        )
        return rows.take(~same).renumber(self._next) if repeats else rows

    def _require_same_content(self, rows: Rows, same: NDArray[np.bool_]) -> None:
        """Compare every repeat with its predecessor; that of the first row is the carried row."""
        at = np.flatnonzero(same)
        if at[0] == 0 and self._carried is not None:
            self._compare(self._carried[1], rows.batch.slice(0, 1), rows, at[:1])
            at = at[1:]
        if len(at):
            before = rows.batch.take(pa.array(at - 1))
            self._compare(before, rows.batch.take(pa.array(at)), rows, at)

    def _compare(
        self, before: pa.RecordBatch, after: pa.RecordBatch, rows: Rows, at: NDArray[np.intp]
    ) -> None:
        if digest(before) == digest(after):
            return
        for place in range(len(at)):
            one, other = before.slice(place, 1), after.slice(place, 1)
            if digest(one) != digest(other):
                differ = [
                    name
                    for name in one.schema.names
                    if digest(one.select([name])) != digest(other.select([name]))
                ]
                raise Diverged(
                    f"{self._event(rows, int(at[place]))} appears twice with different "
                    f"content ({', '.join(differ)} differ); an id must name one event. Give each "
                    f"version its own id, or add the column that distinguishes them to event="
                )

    def _require_increasing(self, rows: Rows) -> None:
        """Require that the ids of each entity increase from row to row and from batch to batch."""
        present, places = rows.scopes.distinct()
        last: list[Any] = list(map(self._last.get, rows.scopes.texts_of(present)))
        known = np.flatnonzero([each is not None for each in last])
        found = [each for each in last if each is not None]
        whole = len(rows.ids) == 1
        parts = []
        for at, part in enumerate(rows.ids):
            values = found if whole else [each[at] for each in found]
            parts.append(pa.concat_arrays([pa.array(values, part.type), part]))
        codes = np.concatenate([known, places])
        order = np.argsort(codes, kind="stable")
        rises = columns.steps([part.take(pa.array(order)) for part in parts]).rises
        wrong = (codes[order][1:] == codes[order][:-1]) & ~rises
        if wrong.any():
            row = int(order[int(np.argmax(wrong)) + 1]) - len(known)
            raise Diverged(
                f"{self._event(rows, row)} is not greater than the previous id of its entity "
                f"in the order ({self._order_text()}); remove increasing=True, or pass an order_by "
                f"that the ids follow"
            )
        self._last.update(rows.last_ids())

    def _event(self, rows: Rows, row: int) -> str:
        return (
            f"event {rows.id(row)!r} of entity {rows.scope(row)!r} in partition {self.partition!r}"
        )

    def _order_text(self) -> str:
        return ", ".join(self.identity.order_columns())


def _hash(rows: Rows, seed: int) -> NDArray[np.uint64]:
    texts = rows.scopes.texts
    present, places = rows.scopes.distinct()
    hashed = [xxhash.xxh3_64_intdigest(texts[code].encode(), seed) for code in present.tolist()]
    words = np.array(hashed, np.uint64)[places]
    for part in rows.ids:
        if pa.types.is_int64(part.type):
            value = part.to_numpy().view(np.uint64)
        else:
            encoded = part.dictionary_encode()
            distinct = [
                xxhash.xxh3_64_intdigest(text.encode(), seed)
                for text in encoded.dictionary.to_pylist()
            ]
            value = np.array(distinct, np.uint64)[encoded.indices.to_numpy()]
        words = _mixed(words * np.uint64(0x9E3779B97F4A7C15) ^ _mixed(value + np.uint64(seed + 1)))
    return words


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64: a bijection that spreads every bit over all bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
