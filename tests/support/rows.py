"""The rows of the three source systems, what has to be shown of them, and what the last run showed.

`python -m tests.support.rows` prints every row with its tests. A test names rows with
`@pytest.mark.rows("S10", "A9")`; it shows them when it ran and passed (`rows_plugin`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]

TITLES = {
    "S1": "ingress stamps every event with its entity and its id",
    "S2": "ids of an entity are unique and increase, wherever they are given",
    "S3": "counters: one step is atomic and survives a restart",
    "S4": "a minibatch read again has the same records",
    "S5": "minibatch and partition keep their ids on every retry",
    "S6": "the row in streams is durable before the first effect",
    "S7": "whether a partition was seen is one look-up",
    "S8": "a new partition reads no events",
    "S9": "events: the ids of each entity as a set",
    "S10": "a record is skipped if and only if its id is in its set; resume at the exact record",
    "S11": "ids are recorded with each bounded group of effects",
    "S12": "one store of table, key, payload; replaceable",
    "S13": "a stale cache never causes a duplicate",
    "S14": "the driver gives ids, nodes deliver; routing",
    "S15": "after a node fault the partition runs again under the same ids",
    "S16": "pure output: one part file per partition, overwritten",
    "S17": "guarded effects: bus, key-value store, REST call",
    "S18": "rows are deleted only when they can no longer be replayed",
    "S19": "two attempts at once cannot both act unnoticed",
    "S20": "two outputs of one minibatch do not mask each other",
    "S21": "an uncertain record follows a stated policy",
    "S22": "whoever sent an event can ask for its outcome",
    "A1": "exact ranges of ordered partitions can be read again",
    "A2": "durable checkpoint per partition: previous, current, pending",
    "A3": "retrieval up to a limit of count, bytes or time",
    "A4": "the intent is durable before the effect",
    "A5": "the intent carries the place at the destination",
    "A6": "the records are sent to that place",
    "A7": "complete: after the send, in one update, and the place goes",
    "A8": "the metadata is read before anything is sent",
    "A9": "pending: exactly the recorded range is done again",
    "A10": "not pending: it is skipped and work goes on",
    "A11": "the repeated range comes from the metadata, whatever the limits are now",
    "A12": "partial output at the place is replaced",
    "A13": "a key that is there is only completed, one that is not is sent",
    "A14": "each destination answers whether it has something, in its own way",
    "A15": "staged delivery: each stage has its own intent and complete",
    "A16": "deterministic names and a manifest; known files are not loaded again",
    "A17": "a write needs the token of the assignment; a stale worker stops",
    "A18": "a heartbeat that stops leads to a take-over",
    "A19": "the new worker gets range, place and state of what is pending",
    "A20": "bounds: last <= new <= highest delivered; equal is a no-op; a new intent replaces",
    "A21": "split and merge: parents complete before children start",
    "A22": "count and digest are kept; a mismatch raises",
    "O1": "marker events in the input, in order",
    "O2": "the interval follows from application, latency and rate",
    "O3": "a batch is what lies between two markers",
    "O4": "continuous queries: filter, window, join, aggregate, pattern",
    "O5": "output sequence numbers: gapless, the same on replay, sent along",
    "O6": "C, the last number transmitted, is kept",
    "O7": "each batch records L, its input position and its snapshot",
    "O8": "recovery starts by itself on a sign of failure",
    "O9": "C and L are read before anything is sent",
    "O10": "exactly what is beyond C is sent again",
    "O11": "C = L, C > L, C < L",
    "O12": "a stateful operator is journaled or not",
    "O13": "journaled: a snapshot is the changes since the last",
    "O14": "not journaled: a snapshot is the full state",
    "O15": "the snapshots of a batch are one durable set",
    "O16": "restored state equals never having failed",
    "O17": "snapshots: get, add, clean",
    "O18": "compaction keeps two points to restore",
    "O19": "state per partition, restored wherever it is computed again",
    "O20": "figures of snapshots, outputs, throughput, latency",
    "O21": "reproducible order and timestamps; silent partitions hold nobody back",
    "O22": "per pipeline: checkpointing, start or reset; positions of all inputs",
    "O23": "C comes from the destination where it can tell, else from the ledger",
    "O24": "output that is not deterministic is detected or refused",
    "N1": "resume of a half-delivered partition at the record, for any sink",
    "N2": "nothing per record in the ledger on the clean path",
    "N3": "in doubt is a state of its own, with a policy and a person",
    "N4": "identity survives the loss of the checkpoint, and says what it skipped",
    "N5": "other content on replay is detected",
    "N6": "speculative attempts and zombies are fenced before an effect",
    "N7": "a marker interval that adapts",
    "N8": "immediate visibility, one API, a printed guarantee per sink",
    "N9": "an exactly-once sink for Real-Time Mode",
    "N10": "a test kit that crashes a user's own sink at every step",
    "N11": "an answer for each single event",
    "N12": "memory in proportion to entities, not to events",
}

REQUIRED = """
    S1-S22
    A1-A22
    O1-O24
    N1-N8 N10-N12
"""
"""What is built. The other rows belong to features that do not exist yet."""

ROWS = tuple(TITLES)


class RowState(NamedTuple):
    """What became of the tests that name a row: those that showed it, and why others did not."""

    shown_by: list[str]
    others: dict[str, str]


def expand(ranges: str) -> list[str]:
    """Give every row of `S2-S3 A4`, in order."""
    rows: list[str] = []
    for word in ranges.split():
        found = re.fullmatch(r"([SAON])(\d+)(?:-\1(\d+))?", word)
        assert found, f"not a row or a range of rows: {word}"
        letter, first, last = found.groups()
        rows += [f"{letter}{number}" for number in range(int(first), int(last or first) + 1)]
    return rows


def judge(tests: Iterable[tuple[str, list[str], str]]) -> dict[str, RowState]:
    """Say of each named row what showed it. A test is its node id, its rows and its outcome; only
    `passed` shows anything.
    """
    rows: dict[str, RowState] = {}
    for test, names, outcome in tests:
        for name in names:
            judged = rows.setdefault(name, RowState([], {}))
            if outcome == "passed":
                judged.shown_by.append(test)
            else:
                judged.others[test] = outcome
    return rows


def not_shown(rows: dict[str, RowState], required: str) -> list[str]:
    """Give a line for each required row that no test showed, with what became of its tests."""
    lines = []
    for name in expand(required):
        judged = rows.get(name, RowState([], {}))
        if not judged.shown_by:
            why = ", ".join(f"{test} ({outcome})" for test, outcome in judged.others.items())
            lines.append(f"{name} not shown: {why or 'no test that names it ran'}")
    return lines


def table(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Give every row as `--json` prints it."""
    rows = judge((each["test"], each["rows"], each["outcome"]) for each in run["tests"])
    required = set(expand(REQUIRED))
    found = []
    for name, title in TITLES.items():
        judged = rows.get(name, RowState([], {}))
        found.append(
            {
                "row": name,
                "title": title,
                "state": "shown" if judged.shown_by else "not shown",
                "required": name in required,
                "shown_by": judged.shown_by,
                "others": judged.others,
            }
        )
    return found


def files(root: Path) -> tuple[Path, Path]:
    """Name where the last whole run is recorded, and where the last run of a part."""
    return root / "build" / "rows.json", root / "build" / "rows-part.json"


def read(*, part: bool) -> dict[str, Any]:
    """Give what is recorded of the last whole run, else of a part, else of none."""
    whole, some = files(ROOT)
    for file in (some,) if part else (whole, some):
        if file.exists():
            run: dict[str, Any] = json.loads(file.read_text("utf-8"))
            return run
    return {"whole": False, "at": None, "arguments": [], "tests": []}


def told(run: dict[str, Any]) -> str:
    if run["at"] is None:
        return "no run is recorded yet: run `make test`, or pytest on a part"
    of = "the whole suite" if run["whole"] else f"a part: {' '.join(run['arguments'])}"
    return f"last run of {of}, {run['at']}"


def shown(run: dict[str, Any]) -> Iterator[str]:
    """Give the lines for a person: the cases of one parametrized test stand together."""
    yield told(run)
    for each in table(run):
        optional = "" if each["required"] else ", not yet required"
        yield f"{each['row']:4} {each['title']}: {each['state']}{optional}"
        tests = Counter((test.partition("[")[0], "") for test in each["shown_by"])
        tests += Counter((test.partition("[")[0], out) for test, out in each["others"].items())
        for (test, outcome), cases in tests.items():
            counted = f" ({cases} cases)" if cases > 1 else ""
            yield f"       {test}{counted}{f': {outcome}' if outcome else ''}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rows", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--part", action="store_true", help="the last run of a part")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when a required row is not shown"
    )
    options = parser.parse_args(arguments)
    run = read(part=options.part)
    found = table(run)
    if options.json:
        said = {"at": run["at"], "whole": run["whole"], "arguments": run["arguments"]}
        lines = [json.dumps({**said, "rows": found}, indent=2)]
    else:
        lines = list(shown(run))
    sys.stdout.write("\n".join(lines) + "\n")
    missing = [each for each in found if each["required"] and each["state"] == "not shown"]
    return int(options.check and bool(missing))


if __name__ == "__main__":
    sys.exit(main())
