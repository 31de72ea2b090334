"""Streams of events on the way in: the inbox, the clock that sets markers, and their record."""

from semel.streams.groups import INBOX_SCHEMA
from semel.streams.inbox import Inbox
from semel.streams.marker_clock import APPLICATIONS, Application, Choice, MarkerClock
from semel.streams.markers import Markers, MarkerTaken, Newest, stream_of_pipeline
from semel.streams.new_event import EVENT_BYTES_MAX, NewEvent, Stored
from semel.streams.partitions import InboxPartition
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
    "stream_of_pipeline",
]
