"""Appends to an inbox from a process of its own: `... LEDGER STREAM PREFIX COUNT`."""

from __future__ import annotations

import sys

from semel.streams import Inbox, NewEvent


def main() -> None:
    ledger, stream, prefix, count = sys.argv[1:]
    with Inbox(ledger, stream) as inbox:
        for number in range(0, int(count), 5):
            inbox.append(
                [
                    NewEvent(entity=f"c{each % 7}", value=f"{prefix}{each}".encode())
                    for each in range(number, number + 5)
                ]
            )


if __name__ == "__main__":
    main()
