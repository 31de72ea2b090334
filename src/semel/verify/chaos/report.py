"""The report of a chaos run, as plain values."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from semel.verify.simulator import Category, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semel.verify.simulator import Assessment


@dataclass(frozen=True, slots=True)
class TimedFault:
    """A fault as it happened.

    Attributes:
        at_s: seconds after the first fault could happen.
        not_possible: why it did not happen, if it did not.
        recovered_s: until every sink had an event that was produced after its beginning.
    """

    at_s: float
    kind: str
    target: str
    lasted_s: float
    what: str
    not_possible: str | None = None
    recovered_s: float | None = None


@dataclass(frozen=True, slots=True)
class SinkResult:
    """What became of the events at a sink.

    Attributes:
        in_doubt: how many were ever in doubt; `in_doubt_max` is what the promise allows.
        pending: how many still wait at the end.
        per_second: effects by second of the run, for the timeline.
    """

    sink: str
    capability: str
    delivered: int
    lost: int
    repeated: int
    reordered: int
    unexpected: int
    in_doubt: int
    in_doubt_max: int
    pending: int
    verdict: str
    violations: tuple[str, ...]
    per_second: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        named: tuple[str, str],
        assessment: Assessment,
        in_doubt_max: int,
        per_second: Sequence[int],
    ) -> SinkResult:
        """Return the result of a sink and its capability, from what the checker found."""
        count: Mapping[Category, int] = Counter(assessment.counts)
        return cls(
            sink=named[0],
            capability=named[1],
            delivered=count[Category.DELIVERED],
            lost=count[Category.LOST],
            repeated=count[Category.DUPLICATED],
            reordered=count[Category.REORDERED],
            unexpected=count[Category.UNEXPECTED],
            in_doubt=assessment.doubted,
            in_doubt_max=in_doubt_max,
            pending=count[Category.PENDING] + count[Category.IN_DOUBT],
            verdict=assessment.verdict.value,
            violations=tuple(map(str, assessment.violations)),
            per_second=tuple(per_second),
        )


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """What happened in a chaos run.

    Attributes:
        resolved: how many doubts the run decided, as a person would.
        notes: drivers that ended by themselves, and what else is worth knowing.
    """

    seed: int
    minutes: float
    liar: bool
    versions: dict[str, str]
    events: int
    faults: tuple[TimedFault, ...]
    sinks: tuple[SinkResult, ...]
    resolved: int
    drained_s: float | None
    notes: tuple[str, ...] = field(default=())

    @property
    def happened(self) -> list[TimedFault]:
        """The faults that happened."""
        return [fault for fault in self.faults if fault.not_possible is None]

    @property
    def verdict(self) -> Verdict:
        """Invalid if anything is wrong, unknown if anything still waits, else valid."""
        found = {Verdict(sink.verdict) for sink in self.sinks}
        for verdict in (Verdict.INVALID, Verdict.UNKNOWN):
            if verdict in found:
                return verdict
        return Verdict.VALID

    def total(self, name: str) -> int:
        """Add up a figure of all sinks."""
        return sum(getattr(sink, name) for sink in self.sinks)

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Return, for each kind, how often it happened and how long recovery took."""
        kinds: dict[str, list[TimedFault]] = {}
        for fault in self.faults:
            kinds.setdefault(fault.kind, []).append(fault)
        return {kind: _summed(kinds[kind]) for kind in sorted(kinds)}

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        names = ("lost", "repeated", "reordered", "unexpected", "in_doubt", "pending")
        return {
            "verdict": self.verdict.value,
            **{name: self.total(name) for name in names},
            "faults_happened": len(self.happened),
            "by_kind": self.by_kind(),
            **asdict(self),
        }


def _summed(faults: list[TimedFault]) -> dict[str, Any]:
    happened = [fault for fault in faults if fault.not_possible is None]
    times = [each.recovered_s for each in happened if each.recovered_s is not None]
    return {
        "happened": len(happened),
        "not_possible": len(faults) - len(happened),
        "recovered": len(times),
        "recovery_median_s": round(median(times), 1) if times else None,
        "recovery_max_s": round(max(times), 1) if times else None,
    }
