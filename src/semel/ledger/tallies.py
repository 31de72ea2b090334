"""How many events of a sink are delivered, parked, skipped or discarded: each counts once.

Always true: what is parked, skipped or discarded is not counted as delivered, and where numbers may
have been given twice (a lost checkpoint, a rescaled pipeline) nothing is said of it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from semel.ledger.finished import recorded
from semel.ledger.judging import comes_anew
from semel.ledger.owners import RESCALED, STAGE_OF
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semel.ledger.outcomes import OutcomeRow
    from semel.ledger.rows import OpenRow, ParkedRow
    from semel.ledger.sequences import Standing

FIRST = 1
"""The generation in which every event gets one number."""


def parked_by_state(parked: Sequence[ParkedRow], outcomes: Sequence[OutcomeRow]) -> dict[str, int]:
    """Count events by what became of them, those whose rows were pruned included."""
    found = Counter(row.state.value for row in parked)
    found[ParkedState.DISCARDED.value] += sum(len(row.discarded) for row in outcomes)
    found[ParkedState.SKIPPED.value] += sum(len(row.skipped) for row in outcomes)
    return dict(+found)


def delivered(
    sink: str,
    described: Mapping[str, Any],
    opened: OpenRow | None,
    standings: Mapping[str, Standing],
    aside: tuple[Sequence[ParkedRow], Sequence[OutcomeRow]],
) -> int | None:
    """Say how many events of complete minibatches, or of a finished batch job, are delivered; None
    where that is not known, and for a second stage, whose manifests have no numbers.
    """
    parked, outcomes = aside
    left = [row for row in parked if _is_left(row)]
    done = (recorded(described) or {}).get(sink)
    if STAGE_OF in described["sinks"][sink]:
        return None
    if done is not None:
        return done.count - sum(not comes_anew(row) for row in left)
    if opened is None or opened.minibatch.generation != FIRST or RESCALED in described:
        return None
    left = [row for row in left if row.osn <= _last(standings, row.partition)]
    pruned = sum(len(row.discarded) + len(row.skipped) for row in outcomes)
    return sum(each.osn for each in standings.values()) - len(left) - pruned


def _is_left(row: ParkedRow) -> bool:
    """Whether an event was parked or dropped, and not delivered since."""
    return not row.state.only_marks and row.state is not ParkedState.DELIVERED


def _last(standings: Mapping[str, Standing], partition: str) -> int:
    return standings[partition].osn if partition in standings else 0
