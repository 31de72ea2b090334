"""Records what clients of a store call and what it answers, for the check of linearizability.

Always true:
- a line with the call is written before the store is asked, and one with the answer after it, so a
  client that is killed in between leaves a commit without a known outcome;
- times are of the system's monotonic clock, which all processes of a machine share;
- the rows of two rounds have no key in common.

`python history.py URL WORKLOAD FILE` is a process of several clients, which may be killed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from semel.errors import LedgerUnavailable
from semel.ledger.payloads import dump_payload
from semel.ledger.store.commit import (
    Absent,
    Conflict,
    Delete,
    Equals,
    Key,
    Put,
    Requirement,
    Store,
    Sweep,
    Update,
)
from semel.ledger.store.opening import open_store

TABLE = "history"


@dataclass(frozen=True, slots=True)
class Workload:
    """What the clients of one process do; `first` is the number of its first client."""

    seed: int
    first: int = 0
    clients: int = 3
    rounds: int = 4
    operations: int = 25
    keys: int = 4


@dataclass
class Client:
    """One client: it requires what it has seen, as the ledger does, and writes what no other
    client writes.
    """

    store: Store
    number: int
    workload: Workload
    out: int
    chance: random.Random = field(init=False)
    _written: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.workload.seed}/{self.number}")

    def run(self) -> None:
        """Do all operations of all rounds."""
        for each in range(self.workload.rounds):
            keys = [Key(TABLE, f"r{each}/k{at}") for at in range(self.workload.keys)]
            seen: dict[Key, str] = {}
            for _ in range(self.workload.operations):
                self._operate(each, keys, seen)

    def _operate(self, number: int, keys: Sequence[Key], seen: dict[Key, str]) -> None:
        kind = self.chance.choices(("commit", "read", "scan"), (5, 4, 1))[0]
        if kind == "commit":
            self._commit(number, keys, seen)
            return
        prefix = f"r{number}/"
        chosen = sorted(self.chance.sample(keys, self.chance.randint(1, len(keys))))
        asks: dict[str, Any] = {"prefix": prefix}
        if kind == "read":
            asks = {"keys": [each.key for each in chosen]}
        at = self._called(number, kind, asks)
        try:
            if kind == "read":
                rows = dict(self.store.read(chosen))
            else:
                rows = dict(self.store.scan(TABLE, prefix))
        except LedgerUnavailable:
            return
        self._returned(at, "ok", {"rows": {each.key: text for each, text in rows.items()}})
        for each in chosen if kind == "read" else keys:
            seen.pop(each, None)
        seen.update(rows)

    def _commit(self, number: int, keys: Sequence[Key], seen: dict[Key, str]) -> None:
        requirements: list[Requirement] = []
        updates: list[Update] = []
        for each in self.chance.sample(keys, self.chance.randint(1, 2)):
            if each in seen:
                requirements.append(Equals(each, seen[each]))
                what = self.chance.choices(("put", "delete", "leave"), (6, 2, 2))[0]
            else:
                requirements.append(Absent(each))
                what = "put"
            if what == "put":
                self._written += 1
                payload = dump_payload({"client": self.number, "n": self._written})
                updates.append(Put(each, payload))
            elif what == "delete":
                updates.append(Delete(each))
        if requirements and self.chance.random() < 0.1:
            requirements.pop()  # a commit may require less than it changes
            absent = {each.key for each in requirements if isinstance(each, Absent)}
            requirements = [each for each in requirements if each.key not in absent]
        if self.chance.random() < 0.05:
            updates.insert(0, Sweep(TABLE, f"r{number}/"))
        asks = {
            "requirements": [_requirement(each) for each in requirements],
            "updates": [_update(each) for each in updates],
        }
        at = self._called(number, "commit", asks)
        try:
            self.store.commit(requirements, updates)
        except Conflict:
            self._returned(at, "conflict", {})
        except LedgerUnavailable:
            return
        else:
            self._returned(at, "ok", {})

    # -- the record

    def _called(self, number: int, kind: str, asks: dict[str, Any]) -> int:
        call = time.monotonic_ns()
        self._line({"round": number, "kind": kind, "call": call, **asks})
        return call

    def _returned(self, call: int, outcome: str, more: dict[str, Any]) -> None:
        self._line({"of": call, "return": time.monotonic_ns(), "outcome": outcome, **more})

    def _line(self, line: dict[str, Any]) -> None:
        text = json.dumps({"client": self.number, **line}) + "\n"
        os.write(self.out, text.encode())  # appended as a whole, or not at all


def _requirement(each: Requirement) -> dict[str, Any]:
    if isinstance(each, Equals):
        return {"key": each.key.key, "payload": each.payload}
    return {"key": each.key.key}


def _update(each: Update) -> dict[str, Any]:
    match each:
        case Put(key, payload):
            return {"key": key.key, "payload": payload}
        case Delete(key):
            return {"key": key.key}
        case Sweep(_, prefix):
            return {"key": prefix, "sweep": True}


def record(store: Store, workload: Workload, file: Path) -> None:
    """Run the clients of one process, each in a thread, and append to `file` what they saw."""
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    clients = [
        Client(store, workload.first + each, workload, out) for each in range(workload.clients)
    ]
    with ThreadPoolExecutor(len(clients)) as pool:
        ended = [pool.submit(each.run) for each in clients]
    os.close(out)
    for each in ended:
        each.result()  # a client that failed has recorded less than it should


def operations(file: Path) -> Iterator[dict[str, Any]]:
    """Join the calls in a file with their answers."""
    called: dict[tuple[int, int], dict[str, Any]] = {}
    for text in file.read_text().splitlines():
        line = json.loads(text)
        if "of" in line:
            done = called.pop((line["client"], line.pop("of")))
            yield {**done, **line}
        else:
            called[line["client"], line["call"]] = line
    for line in called.values():
        yield {**line, "outcome": "unknown"}


def workload_text(workload: Workload) -> str:
    """Write workload as an argument of the command line."""
    return json.dumps(asdict(workload))


if __name__ == "__main__":
    record(open_store(sys.argv[1]), Workload(**json.loads(sys.argv[2])), Path(sys.argv[3]))
