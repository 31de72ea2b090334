"""Events on their way in: the inbox, which numbers and keeps them, and the clock of the markers."""

from semel.streams.groups import INBOX_SCHEMA
from semel.streams.inbox import Inbox
from semel.streams.marker_clock import APPLICATIONS, Application, Choice, MarkerClock
from semel.streams.markers import Markers, MarkerTaken, Newest, stream_of_pipeline
from semel.streams.new_event import EVENT_BYTES_MAX, NewEvent, Stored
from semel.streams.partitions import InboxPartition, list_streams
from semel.streams.retention import InboxReader, Pruned

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
    "list_streams",
    "stream_of_pipeline",
]
