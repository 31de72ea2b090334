"""What every identity answers, and its stamper per partition, which turns batches into rows.

- Code outside `events/identity` asks an identity by these methods, never which one it is.
- A stamper gets a partition's batches once, in the partition's order, and numbers events from 0.
- From the same rows it makes the same rows, wherever the batches are split.
- It runs on an executor, for one attempt, and is discarded with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from semel.events.ids.ids_by_entity import EntityIds
    from semel.events.rows import Rows


class Memory(Enum):
    """What the ledger keeps of delivered events, so that a lost checkpoint causes no repeats."""

    POSITIONS = auto()
    HIGHEST_IDS = auto()
    ALL_IDS = auto()
    NOTHING = auto()

    @property
    def keeps_ids(self) -> bool:
        """Whether ids of events are kept, all of them or the highest."""
        return self in (Memory.HIGHEST_IDS, Memory.ALL_IDS)


class Stamper(Protocol):
    """Assigns identities to a partition's events, batch after batch."""

    repeats: int
    """How many rows were dropped as the same event again."""

    def stamp(self, batch: pa.RecordBatch) -> Rows:
        """Return the next rows of the partition. Raises ConfigurationError or Diverged."""
        ...

    def state(self) -> dict[str, int]:
        """Return the last id of each entity of this partition so far, if ids are assigned."""
        ...


class Identity(ABC):
    """What identifies an event: `Position`, `Given` or `Counter`."""

    kind: ClassVar[str]
    survives_lost_checkpoint: ClassVar[bool]
    uses_source_partitions: ClassVar[bool]
    """A partition is one of the source; otherwise entities are spread over N partitions."""
    may_grow: ClassVar[bool]
    """A minibatch that is read again may have more events at the end of a partition."""
    assigns_ids: ClassVar[bool]
    """Ids are counted by semel, from a state that is kept in the journal."""
    all_columns_break_ties: ClassVar[bool] = False
    """`order_columns` has every column of the DataFrame, so each of them must have an order."""

    entity: str | None
    """The column of the entity, as a dotted path."""

    @property
    @abstractmethod
    def memory(self) -> Memory:
        """What the ledger keeps of delivered events."""

    @property
    def id_columns(self) -> tuple[str, ...]:
        """The columns that hold the id of an event, which is remembered; empty if none does."""
        return ()

    @property
    @abstractmethod
    def allows_update_mode(self) -> bool:
        """Whether a row that comes again with new values can have another id, as it must in Spark's
        output modes `update` and `complete`.
        """

    @abstractmethod
    def explain(self) -> str:
        """Return in words when two rows are the same event."""

    @abstractmethod
    def explain_order(self) -> str:
        """Return in words what the events of an entity are ordered by: `their offsets`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the settings that must not change in a pipeline, as JSON."""

    @abstractmethod
    def columns(self) -> list[str]:
        """Return the columns it reads, as dotted paths."""

    @abstractmethod
    def order_columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns, as dotted paths, that put a partition's rows into one total order."""

    def require_order(self, batch: pa.RecordBatch) -> None:  # noqa: B027 - most ids have an order
        """Raise `ConfigurationError` if the columns do not order the events of an entity."""

    @abstractmethod
    def progress_ids(self, rows: Rows) -> EntityIds:
        """Return the ids that the progress row of a destination must keep for these rows."""

    @abstractmethod
    def stamper(self, partition: str, *, last: Mapping[str, int] | None = None) -> Stamper:
        """Return a stamper for one partition of one minibatch."""

    def split(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:  # noqa: ARG002
        """Split a batch of a Spark task into those of its source partitions, with their names."""
        raise AssertionError(f"{self.kind} identity does not use the source's partitions")


def names(value: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return one or several column names as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


def once(*paths: str | None) -> list[str]:
    """Return the column paths that are set, each at its first place only."""
    return list(dict.fromkeys(path for path in paths if path))
