"""Events as columns, with ids, order and digests, cut into chunks for delivery."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.events.columns import column, is_bytes, is_text, put_together
    from semel.events.digests import Digest, changed_columns, column_types, digest
    from semel.events.event import Attempt, Event, EventID, Minibatch
    from semel.events.identity import Counter, Given, Identity, Memory, Position
    from semel.events.identity.parameters import (
        CHOICES,
        OFFSET,
        Named,
        given_named,
        implied,
        position_named,
    )
    from semel.events.ids.id_columns import Labels
    from semel.events.ids.id_set import IdSet, shape_of
    from semel.events.ids.ids_by_entity import EntityIds, Gathered, unpacked
    from semel.events.ids.max_ids import Latest
    from semel.events.partitioning import bucket, bucket_name, sort
    from semel.events.routing import ByRange, Routing, by_directory, by_range, is_continued, places
    from semel.events.rows import Chunk, Rows, chunk_key, cuts, key_part, key_prefix

__all__ = [
    "CHOICES",
    "OFFSET",
    "Attempt",
    "ByRange",
    "Chunk",
    "Counter",
    "Digest",
    "EntityIds",
    "Event",
    "EventID",
    "Gathered",
    "Given",
    "IdSet",
    "Identity",
    "Labels",
    "Latest",
    "Memory",
    "Minibatch",
    "Named",
    "Position",
    "Routing",
    "Rows",
    "bucket",
    "bucket_name",
    "by_directory",
    "by_range",
    "changed_columns",
    "chunk_key",
    "column",
    "column_types",
    "cuts",
    "digest",
    "given_named",
    "implied",
    "is_bytes",
    "is_continued",
    "is_text",
    "key_part",
    "key_prefix",
    "places",
    "position_named",
    "put_together",
    "shape_of",
    "sort",
    "unpacked",
]

_HOMES = {
    "semel.events.columns": ("is_bytes", "is_text", "put_together", "column"),
    "semel.events.digests": ("Digest", "changed_columns", "column_types", "digest"),
    "semel.events.identity": ("Counter", "Given", "Identity", "Memory", "Position"),
    "semel.events.identity.parameters": (
        "CHOICES",
        "OFFSET",
        "Named",
        "given_named",
        "implied",
        "position_named",
    ),
    "semel.events.ids.id_columns": ("Labels",),
    "semel.events.ids.id_set": ("IdSet", "shape_of"),
    "semel.events.ids.ids_by_entity": ("EntityIds", "Gathered", "unpacked"),
    "semel.events.ids.max_ids": ("Latest",),
    "semel.events.partitioning": ("bucket", "bucket_name", "sort"),
    "semel.events.routing": (
        "ByRange",
        "Routing",
        "by_directory",
        "by_range",
        "is_continued",
        "places",
    ),
    "semel.events.event": ("Attempt", "Event", "EventID", "Minibatch"),
    "semel.events.rows": ("Chunk", "Rows", "chunk_key", "cuts", "key_part", "key_prefix"),
}
"""The names of each module, which is imported when one of them is first used: what reads no columns
loads neither Arrow nor NumPy.
"""
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import what a name stands for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'semel.events' has no attribute {name!r}")
    found: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found
