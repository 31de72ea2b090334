"""Events as columns, with ids, order and digests, cut into chunks for delivery."""

from __future__ import annotations

from semel.events.chunks import Chunk
from semel.events.digests import Digest, digest
from semel.events.event import Attempt, EntityID, Event, EventID, Minibatch
from semel.events.identity import Counter, Given, Identity, Memory, Position, Stamper
from semel.events.ids.id_set import IdSet
from semel.events.ids.ids_by_entity import EntityIds, Gathered
from semel.events.ids.max_ids import Latest
from semel.events.partitioning import bucket, bucket_name, cuts, sort
from semel.events.rows import Rows

__all__ = [
    "Attempt",
    "Chunk",
    "Counter",
    "Digest",
    "EntityID",
    "EntityIds",
    "Event",
    "EventID",
    "Gathered",
    "Given",
    "IdSet",
    "Identity",
    "Latest",
    "Memory",
    "Minibatch",
    "Position",
    "Rows",
    "Stamper",
    "bucket",
    "bucket_name",
    "cuts",
    "digest",
    "sort",
]
