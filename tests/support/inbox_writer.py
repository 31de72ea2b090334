"""A producer in a process of its own, which remembers in a file what an inbox has acknowledged.

`python inbox_writer.py URL NAME EVENTS REQUEST JOURNAL`: events of 10 entities that all producers
share, `REQUEST` at a time. It may be killed and started again at any time.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from semel.streams import Inbox, NewEvent

ENTITIES = 10


def event(name: str, number: int) -> NewEvent:
    """The event of a producer under a number, always the same."""
    return NewEvent(
        f"{name}-{number}".encode(),
        entity=f"e{number % ENTITIES}",
        source=name,
        id=str(number),
    )


def acknowledged(journal: Path) -> dict[int, list[object]]:
    """What a producer knows to be stored; a line that was cut off counts for nothing."""
    found: dict[int, list[object]] = {}
    if journal.exists():
        for line in journal.read_text().splitlines():
            try:
                found.update({each[0]: each[1:] for each in json.loads(line)})
            except ValueError:
                continue
    return found


def main(url: str, name: str, events: int, request: int, journal: Path) -> None:
    """Append what is not acknowledged yet."""
    known = acknowledged(journal)
    missing = [number for number in range(events) if number not in known]
    with Inbox(url, "orders") as inbox, journal.open("a") as out:
        out.write("\n")  # ends a line that was cut off
        for start in range(0, len(missing), request):
            numbers = missing[start : start + request]
            stored = inbox.append([event(name, number) for number in numbers])
            answers = [
                [number, each.entity, each.event, each.partition, each.offset]
                for number, each in zip(numbers, stored, strict=True)
            ]
            out.write(json.dumps(answers) + "\n")
            out.flush()
            os.fsync(out.fileno())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
