"""Streams of events on the way in: the inbox, which numbers events and keeps them."""

from semel.streams.groups import INBOX_SCHEMA
from semel.streams.inbox import Inbox
from semel.streams.new_event import EVENT_BYTES_MAX, NewEvent, Stored
from semel.streams.partitions import InboxPartition, list_streams
from semel.streams.retention import InboxReader, Pruned

__all__ = [
    "EVENT_BYTES_MAX",
    "INBOX_SCHEMA",
    "Inbox",
    "InboxPartition",
    "InboxReader",
    "NewEvent",
    "Pruned",
    "Stored",
    "list_streams",
]
