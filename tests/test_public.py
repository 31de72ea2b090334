"""The public surface fits on one page, and this is the page."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import semel
from semel import sinks

PUBLIC = [
    "INBOX_SCHEMA",
    "ConfigurationError",
    "DeliveryError",
    "Diverged",
    "Event",
    "EventRefused",
    "EventTooLarge",
    "EventsParked",
    "Fenced",
    "HeldInDoubt",
    "Inbox",
    "JsonLogs",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "MissingExtra",
    "NewEvent",
    "NotDelivered",
    "OutcomeUnknown",
    "RangeUnavailable",
    "Rejected",
    "RepeatDiffers",
    "SemelError",
    "SinkBroken",
    "StopRequested",
    "by_directory",
    "by_range",
    "deliver",
    "deliver_batch",
    "errors",
    "explain",
    "sink",
    "sinks",
    "stop",
]

SINKS = [
    "DELIVERED",
    "AnySession",
    "Basic",
    "Bearer",
    "Capability",
    "Certificate",
    "Chunk",
    "Ended",
    "EndedPart",
    "Files",
    "Function",
    "Http",
    "Kafka",
    "Loader",
    "Manifest",
    "OnDoubt",
    "OnReject",
    "Postgres",
    "PostgresLoad",
    "ProbingSession",
    "Progress",
    "Receipt",
    "Redis",
    "Retry",
    "SequencedSession",
    "Session",
    "Sink",
    "Tail",
    "Target",
    "TransactionalSession",
    "WholeSession",
    "sink",
]


def test_the_public_names_are_these() -> None:
    assert semel.__all__ == PUBLIC
    assert all(hasattr(semel, name) for name in PUBLIC)


def test_what_an_author_of_sinks_needs_is_this() -> None:
    assert sinks.__all__ == SINKS
    assert all(hasattr(sinks, name) for name in SINKS)


def test_importing_semel_loads_no_room() -> None:
    script = "import sys, semel; print(*(name for name in sys.modules if name[:5] == 'semel'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.split() == [b"semel"]


def test_no_name_of_a_door_that_loads_later_is_a_module_beside_it() -> None:
    """Python sets the module under that name when it is loaded, and the name is not looked up."""
    root = Path(semel.__file__).parent
    for door in root.glob("*/**/__init__.py"):
        room = import_module(".".join(("semel", *door.relative_to(root).parent.parts)))
        body = ast.parse(door.read_text()).body
        at_once = {
            each.name for node in body if isinstance(node, ast.ImportFrom) for each in node.names
        }
        modules = {path.stem for path in door.parent.iterdir()}
        assert not (set(getattr(room, "__all__", ())) - at_once) & modules, room
