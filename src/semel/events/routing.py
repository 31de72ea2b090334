"""Routing of entities to partitions by range or by directory, instead of by hash.

Always true:
- the partition depends only on the entity's text form, so one entity has one partition;
- a routing must not change in a pipeline: `describe` is recorded and compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from semel.errors import ConfigurationError, plain_text
from semel.events.ids.id_columns import Labels
from semel.events.partitioning import bucket

if TYPE_CHECKING:
    from numpy.typing import NDArray

TABLE_MAX = 10_000
"""How many entities a table may name: the ledger keeps it."""


@runtime_checkable
class Routing(Protocol):
    """Spreads entities over partitions."""

    @property
    def partitions(self) -> int | None:
        """The number of partitions; None leaves it to `partitions=` of `semel.deliver`."""

    def place(self, entity: str, partitions: int) -> int:
        """Return the partition of an entity. Raises `ConfigurationError` if it has none."""

    def describe(self) -> dict[str, Any]:
        """Return the settings that must not change in a pipeline, as JSON."""


@dataclass(frozen=True)
class ByRange:
    """Entities below the first bound go to partition 0, from the last bound on to the last one."""

    bounds: tuple[int, ...] | tuple[str, ...]

    def __post_init__(self) -> None:
        kinds = set(map(type, self.bounds))
        if not self.bounds or len(kinds) != 1 or not kinds <= {int, str}:
            raise ConfigurationError(
                f"by_range({list(self.bounds)!r}): bounds must be integers or strings, all of one "
                "kind, and at least one: by_range([1000, 2000]) makes three partitions"
            )
        if any(one >= other for one, other in pairwise(self.bounds)):  # type: ignore[operator]
            raise ConfigurationError(
                f"by_range({list(self.bounds)!r}): bounds must increase, each once"
            )

    @property
    def partitions(self) -> int:
        """The number of bounds plus one."""
        return len(self.bounds) + 1

    @property
    def is_numeric(self) -> bool:
        """Whether entities are compared as integers, not as texts."""
        return isinstance(self.bounds[0], int)

    def place(self, entity: str, partitions: int) -> int:
        """Count the bounds that are not above the entity."""
        del partitions
        if not self.is_numeric:
            return bisect_right(self.bounds, entity)
        try:
            return bisect_right(self.bounds, int(entity))
        except ValueError:
            raise ConfigurationError(
                f"entity {plain_text(entity, 80)!r} is not an integer, but the bounds of by_range "
                "are; pass bounds of the type of the entity"
            ) from None

    def describe(self) -> dict[str, Any]:
        """Return the bounds."""
        return {"kind": "range", "bounds": list(self.bounds)}


@dataclass(frozen=True)
class ByDirectory:
    """Looks each entity up in a table, or with a function that is called once for each distinct
    entity of a task and must always return the same result for it.
    """

    directory: Mapping[str, int] | Callable[[str], int] = field(repr=False)
    partitions: int | None = None
    default: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.directory, Mapping):
            if not callable(self.directory):
                raise ConfigurationError(
                    f"by_directory needs a dict of entity to partition number, or a function that "
                    f"takes an entity and returns one, got {self.directory!r}"
                )
            if self.default is not None:
                raise ConfigurationError(
                    "by_directory: default= needs a table; have the function return the default"
                )
            return
        named = {str(entity): place for entity, place in self.directory.items()}
        if not named or len(named) != len(self.directory) or len(named) > TABLE_MAX:
            raise ConfigurationError(
                f"by_directory: the table has {len(self.directory)} entities of {len(named)} "
                f"names; it must have 1 to {TABLE_MAX}, each once. Use a function for more"
            )
        object.__setattr__(self, "directory", named)
        places = [*named.values(), *([] if self.default is None else [self.default])]
        if any(type(each) is not int or each < 0 for each in places):
            raise ConfigurationError(
                "by_directory: partition numbers must be integers from 0 on, got "
                f"{next(each for each in places if type(each) is not int or each < 0)!r}"
            )
        if self.partitions is None:
            object.__setattr__(self, "partitions", max(places) + 1)
        elif max(places) >= self.partitions:
            raise ConfigurationError(
                f"by_directory: partition {max(places)} is out of range: {self.partitions} "
                f"partitions are numbered from 0 to {self.partitions - 1}"
            )

    def place(self, entity: str, partitions: int) -> int:
        """Look up an entity."""
        if isinstance(self.directory, Mapping):
            found: Any = self.directory.get(entity, self.default)
            if found is None:
                raise ConfigurationError(
                    f"entity {plain_text(entity, 80)!r} is not in the table of by_directory: add "
                    "it, or pass default= for entities that the table does not name"
                )
        else:
            found = self.directory(entity)
        if type(found) is not int or not 0 <= found < partitions:
            raise ConfigurationError(
                f"by_directory returned {found!r} for entity {plain_text(entity, 80)!r}; "
                f"partitions are numbered from 0 to {partitions - 1}"
            )
        return found

    def describe(self) -> dict[str, Any]:
        """Return the table, or the name of the function."""
        if isinstance(self.directory, Mapping):
            named = {"table": dict(sorted(self.directory.items()))}
            return {"kind": "directory", **named, "default": self.default}
        function: Any = self.directory
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return {"kind": "directory", "function": f"{function.__module__}:{name}"}


def by_range(bounds: Sequence[int] | Sequence[str]) -> ByRange:
    """Spread entities over partitions by ranges: `by_range([1000, 2000])` makes three, below 1000,
    from 1000 to below 2000, and from 2000 on. Texts are compared by their bytes.
    """
    if isinstance(bounds, str) or not isinstance(bounds, Sequence):
        raise ConfigurationError(f"by_range needs a list of bounds, got {bounds!r}")
    return ByRange(tuple(bounds))  # type: ignore[arg-type]


def by_directory(
    directory: Mapping[Any, int] | Callable[[str], int],
    *,
    partitions: int | None = None,
    default: int | None = None,
) -> ByDirectory:
    """Spread entities over partitions by a table (entity to partition number; `default` is the
    partition of entities that are not in it) or by a function of the entity, which must always
    return the same result.
    """
    return ByDirectory(directory, partitions, default)


def is_continued(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Return whether every entity that had a partition still has it: nothing changed, or a table
    without a default names further entities.
    """
    if before == after:
        return True
    if before is None or after is None or "table" not in before or "table" not in after:
        return False
    defaults = (before["default"], after["default"])
    return defaults == (None, None) and before["table"].items() <= after["table"].items()


def places(entities: pa.Array, n: int, routing: Routing | None = None) -> NDArray[np.int64]:
    """Return the partition of each entity among `n`; each distinct one is looked up once."""
    if routing is None:
        return bucket(entities, n)
    if entities.null_count:
        raise ConfigurationError("an entity is null; filter such rows out before delivering")
    plain = entities.dictionary_decode() if pa.types.is_dictionary(entities.type) else entities
    labels = Labels.of(plain, "entity")
    found = np.array([routing.place(text, n) for text in labels.texts], np.int64)
    placed: NDArray[np.int64] = found[labels.codes]
    return placed
