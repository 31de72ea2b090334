"""Events on their way in: the inbox, which numbers and keeps them, and the clock of the markers."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.streams.groups import INBOX_SCHEMA
    from semel.streams.inbox import Inbox
    from semel.streams.marker_clock import APPLICATIONS, Application, Choice, MarkerClock
    from semel.streams.markers import Markers, MarkerTaken, Newest, stream_of_pipeline
    from semel.streams.new_event import EVENT_BYTES_MAX, NewEvent, Stored
    from semel.streams.partitions import InboxPartition, list_streams
    from semel.streams.retention import InboxReader, Pruned, is_reader_name

__all__ = [
    "APPLICATIONS",
    "EVENT_BYTES_MAX",
    "INBOX_SCHEMA",
    "Application",
    "Choice",
    "Inbox",
    "InboxPartition",
    "InboxReader",
    "MarkerClock",
    "MarkerTaken",
    "Markers",
    "NewEvent",
    "Newest",
    "Pruned",
    "Stored",
    "is_reader_name",
    "list_streams",
    "stream_of_pipeline",
]

_HOMES = {
    "semel.streams.groups": ("INBOX_SCHEMA",),
    "semel.streams.inbox": ("Inbox",),
    "semel.streams.marker_clock": ("APPLICATIONS", "Application", "Choice", "MarkerClock"),
    "semel.streams.markers": ("MarkerTaken", "Markers", "Newest", "stream_of_pipeline"),
    "semel.streams.new_event": ("EVENT_BYTES_MAX", "NewEvent", "Stored"),
    "semel.streams.partitions": ("InboxPartition", "list_streams"),
    "semel.streams.retention": ("InboxReader", "Pruned", "is_reader_name"),
}
"""The names of each module, which is imported when one of them is first used: the markers of a
pipeline need neither Arrow nor NumPy.
"""
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import what a name stands for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'semel.streams' has no attribute {name!r}")
    found: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found
