"""Reset: where a stopped pipeline begins again, and how many events that repeats or skips.

Always true:
- what a reset will do is computed before it does anything, and a number that the ledger and the
  source do not give is unknown, never 0.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.ledger import (
    LedgerClient,
    read_reset_standing,
    refuse_parked,
    starting_offsets,
)
from semel.ledger import reset_pipeline as reset_in_ledger
from semel.operate.ledgers import choose_pipeline
from semel.operate.resolve import require_reason
from semel.operate.status import RunState, read_status
from semel.streams import Inbox, list_streams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.ledger import Ledger, ResetStanding

EARLIEST, LATEST, POSITIONS = "earliest", "latest", "positions"
OFFSET_MAX = 2**63 - 1
"""Sources have offsets of 64 bits."""


@dataclass(frozen=True, slots=True)
class ResetPartition:
    """What a reset means for one source partition. A number is None where it is not known.

    Attributes:
        before: the offset at which it would have continued.
        begins: the offset at which it begins now.
        repeated: how many offsets are delivered again.
        suppressed: how many offsets are read again; events that were delivered are not repeated.
        skipped: how many offsets are not read.
    """

    partition: str
    before: int | None
    begins: int | None
    repeated: int | None
    suppressed: int | None
    skipped: int | None


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """A reset, as it will be or was done.

    Attributes:
        to: `earliest`, `latest` or `positions`.
        starting_offsets: the option `startingOffsets` with which the query begins there.
        number: of the reset, once it is recorded; None for a dry run.
    """

    pipeline: str
    to: str
    repeat: bool
    by: str
    reason: str
    partitions: tuple[ResetPartition, ...]
    starting_offsets: str
    number: int | None = None

    def total(self, name: str) -> int | None:
        """Return the sum of a number over all partitions; None if one of them is not known."""
        found = [getattr(each, name) for each in self.partitions]
        return None if not found or None in found else sum(found)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        totals = {name: self.total(name) for name in ("repeated", "suppressed", "skipped")}
        return {**asdict(self), **totals, "dry_run": self.number is None}


def reset_pipeline(
    ledger: Ledger,
    pipeline: str,
    to: str,
    *,
    by: str,
    reason: str,
    repeat: bool,
    dry_run: bool,
) -> ResetPlan:
    """Decide where a stopped pipeline begins at its next start: `earliest`, `latest`, or positions
    as in Spark's `startingOffsets`. With `dry_run` only compute what that means. The heartbeat of
    the run is watched, for up to 10 seconds.

    Raises `ConfigurationError` for wrong positions, while the pipeline runs, in the middle of a
    minibatch, for counted ids, and if events would be repeated without `repeat`.
    """
    require_reason(reason)
    name = choose_pipeline(ledger, pipeline)
    status = read_status(ledger, name, watch=True)
    if status.state is RunState.RUNNING:
        raise ConfigurationError(
            f"pipeline {name!r} is running (run {status.run}); stop the query before resetting"
        )
    client = LedgerClient(ledger.store, name)
    standing = read_reset_standing(client)
    word, positions = _read_target(name, to, standing)
    ranges = _ranges(ledger, standing)
    plan = ResetPlan(
        name,
        word,
        repeat,
        by,
        reason,
        tuple(_partitions(standing, word, positions, ranges, repeat=repeat)),
        starting_offsets({**standing.known, **positions}, {**standing.known, **positions})
        if word == POSITIONS
        else word,
    )
    _refuse_unmeant(plan, standing)
    if repeat:
        refuse_parked(client, standing.described["sinks"])
    if dry_run:
        return plan
    row = reset_in_ledger(client, standing, word, positions, by, reason, repeat=repeat)
    return ResetPlan(
        name, word, repeat, by, reason, plan.partitions, plan.starting_offsets, row.number
    )


def _read_target(pipeline: str, to: str, standing: ResetStanding) -> tuple[str, dict[str, int]]:
    """Return the word, and the positions of named partitions. Raises `ConfigurationError`."""
    if to in (EARLIEST, LATEST):
        return to, {}
    form = '\'{"payments": {"0": 17, "1": 23}}\''
    try:
        typed = json.loads(to)
    except (ValueError, RecursionError):
        typed = None
    found: dict[str, int] = {}
    for topic, partitions in typed.items() if isinstance(typed, dict) else ():
        if not isinstance(partitions, dict):
            found = {}
            break
        for number, offset in partitions.items():
            named = number.isascii() and number.isdecimal()
            if type(offset) is not int or not 0 <= offset <= OFFSET_MAX or not named:
                raise ConfigurationError(
                    f"--to {topic}/{number}: the position must be an offset, 0 or more, of a "
                    f"numbered partition, got {offset!r}"
                )
            found[f"{topic}/{number}"] = offset
    if not found:
        raise ConfigurationError(
            f"--to must be earliest, latest, or positions as {form}, got {to!r}"
        )
    unknown = sorted(found.keys() - standing.known.keys())
    if unknown and standing.known:
        known = ", ".join(sorted(standing.known))
        raise ConfigurationError(
            f"pipeline {pipeline!r} has not read {unknown[0]}; the ledger knows {known}"
        )
    if unknown and standing.by_position:
        raise ConfigurationError(
            f"pipeline {pipeline!r} has not delivered any event, so there is nothing to reset: "
            "start it with the startingOffsets that you want"
        )
    return POSITIONS, found


def _ranges(ledger: Ledger, standing: ResetStanding) -> dict[str, tuple[int, int]]:
    """Return first offset and end of each partition of an inbox in this ledger that the pipeline
    reads: the only source that can be asked without its own address.
    """
    topics = {name.rpartition("/")[0] for name in standing.known}
    found: dict[str, tuple[int, int]] = {}
    for stream in topics & set(list_streams(ledger.store)):
        for each in Inbox(ledger.store, stream).layout():
            found[f"{stream}/{each.partition}"] = (each.begin, each.end)
    fits = all(
        name in found and found[name][0] <= at <= found[name][1]
        for name, at in standing.known.items()
        if name.rpartition("/")[0] in topics
    )
    return found if fits else {}  # a topic of Kafka may have the name of a stream


def _partitions(
    standing: ResetStanding,
    to: str,
    positions: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int]],
    *,
    repeat: bool,
) -> list[ResetPartition]:
    made = []
    for name in sorted({*standing.known, *positions, *ranges}):
        before, known = standing.known.get(name), ranges.get(name)
        before = before if known is None or before is not None else known[0]
        begins = positions.get(name, before)
        if to != POSITIONS:
            begins = None if known is None else known[to == LATEST]
        if to == EARLIEST and before == 0:
            begins = 0
        back = ahead = None
        if before is not None and begins is not None:
            back, ahead = max(0, before - begins), max(0, begins - before)
        elif to == EARLIEST:
            ahead = 0
        elif to == LATEST:
            back = 0
        made.append(
            ResetPartition(
                name,
                before,
                begins,
                repeated=back if repeat else 0,
                suppressed=0 if repeat else back,
                skipped=ahead,
            )
        )
    return made


def _refuse_unmeant(plan: ResetPlan, standing: ResetStanding) -> None:
    """Refuse a repeat that was not asked for, or that there is none of."""
    back = plan.to == EARLIEST or any(
        each.begins is not None and each.before is not None and each.begins < each.before
        for each in plan.partitions
    )
    unknown = any(each.before is None or each.begins is None for each in plan.partitions)
    if plan.repeat and not back and not (unknown and plan.to == POSITIONS):
        raise ConfigurationError(
            f"pipeline {plan.pipeline!r}: --repeat needs a position before the one where the "
            f"pipeline stands, and this one is not; leave --repeat out"
        )
    if standing.by_position and back and not plan.repeat:
        raise ConfigurationError(
            f"pipeline {plan.pipeline!r} identifies events by position, and every position before "
            "the one where it stands counts as handled: nothing would be delivered again. Pass "
            "--repeat to deliver them again; deliver a range that was never read as a batch job "
            "(semel.deliver_batch) under another name"
        )
