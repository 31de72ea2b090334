"""The contract suite: crashes a sink at every step, and reports whether it earns its capability.

Always true:
- the sink's own code runs in real processes, with the real delivery on a real ledger; only chunks
  are made small, and a policy that repeats or drops events is replaced by `hold`;
- a case that could not be checked is unknown, and unknown is not earned.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semel.errors import ConfigurationError, SemelError, SinkBroken
from semel.protocol import Capability, OnDoubt, OnReject
from semel.runtime import SystemClock
from semel.verify.contract.cases import CASES, ContractCase
from semel.verify.contract.faults import CUTS
from semel.verify.contract.forkserver import ForkServer, ForkServerFailed
from semel.verify.contract.judge import judge
from semel.verify.contract.rows import Maker
from semel.verify.contract.sandbox import Sandbox, Stuck
from semel.verify.contract.scenarios import Scenario, Scene

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.sinks import Sink
    from semel.verify.contract.rows import Pair
    from semel.verify.contract.sandbox import ProcessRecord

SEED = 7
SETTLES_S = 0.2
CHUNK_ROWS = 3
NOT_CLEAN = "it does not work when nothing goes wrong"
SPAN_CHUNKS = 2

CLEAN = Scenario("nothing goes wrong", lambda sandbox: sandbox.finish())

Arrived = Callable[[], Iterable[tuple[object, object]]]


class Earned(StrEnum):
    """The result of a case."""

    YES = "earned"
    NO = "broken"
    UNKNOWN = "unknown"
    NOTHING = "does not apply"


@dataclass(frozen=True)
class Subject:
    """A sink under test, and how to find out what arrived.

    Attributes:
        name: its name in messages.
        arrived: returns the effects that happened, in the order of arrival, as pairs of entity and
            event id; an effect that happened twice is returned twice.
        maker: makes the rows.
        settles_s: how long the destination needs to finish calls whose caller is gone.
    """

    name: str
    sink: Sink
    arrived: Arrived
    maker: Maker = field(default_factory=Maker)
    settles_s: float = SETTLES_S


@dataclass(frozen=True)
class Finding:
    """A scenario that broke the promise: what happened to which event, and the story."""

    play: str
    what: tuple[str, ...]
    story: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"play": self.play, "what": list(self.what), "story": list(self.story)}


@dataclass(frozen=True)
class CaseResult:
    """The result of a case, with its findings."""

    case: str
    says: str
    earned: Earned
    plays: int = 0
    events: int = 0
    in_doubt: int = 0
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "case": self.case,
            "says": self.says,
            "verdict": self.earned.value,
            "plays": self.plays,
            "events": self.events,
            "in_doubt": self.in_doubt,
            "seconds": round(self.seconds, 3),
            "findings": [each.to_json() for each in self.findings],
        }


def earned(results: Sequence[CaseResult]) -> bool:
    """Whether at least one case is earned, and no case is broken or unknown."""
    found = {result.earned for result in results}
    return Earned.YES in found and found <= {Earned.YES, Earned.NOTHING}


@dataclass
class _Played:
    """A scenario that has ended."""

    scenario: Scenario
    sandbox: Sandbox
    stuck: Stuck | None = None
    happened: bool = True


class Suite:
    """Runs cases against one sink."""

    def __init__(self, subject: Subject, fork_server: ForkServer, seed: int = SEED) -> None:
        self.subject = subject
        self.seed = seed
        self._fork_server = fork_server
        self._clock = SystemClock()
        self._token = uuid4().hex[:8]
        self._sandboxes = 0
        self._loaded: bytes | None = None
        self._clean: ProcessRecord | None = None
        self._played: dict[str, list[_Played]] = {}

    def run(self, case: ContractCase) -> CaseResult:
        """Run every scenario of a case, then check what arrived."""
        reason = case.why_not(self.subject.sink)
        if reason is not None:
            return CaseResult(
                case.name, case.says, Earned.NOTHING, findings=(Finding("-", (reason,)),)
            )
        began = self._clock.monotonic()
        try:
            played = self._play_all(case)
            result = self._judge(case, played, self._arrived())
        except (ForkServerFailed, ConfigurationError) as error:
            result = self._unknown(case, str(error))
        return replace(result, seconds=self._clock.monotonic() - began)

    def look_again(self, results: Sequence[CaseResult]) -> list[CaseResult]:
        """Check once more what arrived: effects after a case was judged count too."""
        try:
            arrived = self._arrived()
        except ConfigurationError as error:
            return [replace(each, **_blind(str(error))) for each in results]
        cases = {case.name: case for case in CASES}
        final = []
        for result in results:
            again = result
            if result.earned is Earned.YES and result.case in self._played:
                again = self._judge(cases[result.case], self._played[result.case], arrived)
            final.append(replace(again, seconds=result.seconds))
        return final

    # -- running

    def _play_all(self, case: ContractCase) -> list[_Played]:
        scene = Scene(self.subject.sink, self._looked(), Random(f"{self.seed}/{case.name}"))
        self._played[case.name] = [self._play(each) for each in case.plays(scene)]
        return self._played[case.name]

    def _looked(self) -> ProcessRecord:
        """Run it once without faults, to learn its steps."""
        if self._clean is None:
            self._clean = self._sandbox(CLEAN).run()
        if not self._clean.ended:
            kind, why = self._clean.error or ("", "it ended without an error message")
            raise ConfigurationError(f"{NOT_CLEAN}: {kind}: {why}")
        return self._clean

    def _play(self, scenario: Scenario) -> _Played:
        sandbox = self._sandbox(scenario)
        played = _Played(scenario, sandbox)
        try:
            scenario.act(sandbox)
        except Stuck as stuck:
            played.stuck = stuck
            stuck.blames = stuck.blames or self._sandbox(CLEAN).run().ended  # it works for others
        played.happened = _happened(sandbox)
        for process in sandbox.zombies:  # one that is still stopped would stay stopped
            self._fork_server.signal(process.pid, 9)
        return played

    def _sandbox(self, scenario: Scenario) -> Sandbox:
        chunk_rows = None if scenario.whole_chunk else CHUNK_ROWS
        sink = tested(self.subject.sink, chunk_rows, scenario.on_reject)
        self._load(sink)
        self._sandboxes += 1
        name = f"{self._token}-{self._sandboxes}-"
        folder = self._fork_server.folder / name
        maker = replace(self.subject.maker, by_position=scenario.by_position)
        settles_s = self.subject.settles_s
        return Sandbox(self._fork_server, sink, maker, folder, name, settles_s, scenario.partitions)

    def _load(self, sink: Sink) -> None:
        """Send the sink to the fork server."""
        try:
            pickled = pickle.dumps(sink)
        except Exception as error:
            raise ConfigurationError(
                f"the sink cannot be pickled ({error}); it is sent from the driver to every "
                "executor, so make it a frozen dataclass of plain values in an importable module"
            ) from error
        if pickled != self._loaded:
            self._fork_server.load(pickled, _modules(sink))
            self._loaded = pickled

    # -- checking

    def _arrived(self) -> list[Pair]:
        """Call the user's function. Raises `ConfigurationError` if it fails."""
        try:
            return [(str(entity), str(event)) for entity, event in self.subject.arrived()]
        except Exception as error:
            raise ConfigurationError(
                f"arrived() failed ({type(error).__name__}: {error}); it must return pairs of "
                "entity and event id, one for each effect that happened, in the order of arrival"
            ) from error

    def _judge(
        self, case: ContractCase, played: Sequence[_Played], arrived: Sequence[Pair]
    ) -> CaseResult:
        findings: list[Finding] = []
        unknown: list[Finding] = []
        events = doubts = 0
        for each in played:
            stuck = _describe(each)
            if stuck and each.stuck is not None and not each.stuck.blames:
                unknown.append(Finding(each.scenario.title, stuck, tuple(each.sandbox.story())))
                continue
            verdict = judge(each.sandbox, arrived)
            events, doubts = events + verdict.events, doubts + verdict.in_doubt
            what = (*stuck, *verdict.violations)
            if what:
                findings.append(Finding(each.scenario.title, what, tuple(each.sandbox.story())))
        result = Earned.NO if findings else Earned.UNKNOWN if unknown else Earned.YES
        if result is Earned.YES:
            result, unknown = _happened_in(played)
        return CaseResult(
            case.name, case.says, result, len(played), events, doubts, 0.0, (*findings, *unknown)
        )

    def _unknown(self, case: ContractCase, why: str) -> CaseResult:
        return CaseResult(case.name, case.says, **_blind(why))


def _blind(why: str) -> dict[str, Any]:
    """Return an unknown result, or a broken one if the sink's own code failed without any fault."""
    broken = why.startswith(f"{NOT_CLEAN}: {SinkBroken.__name__}:")
    earned = Earned.NO if broken else Earned.UNKNOWN
    return {"earned": earned, "findings": (Finding("-", (why,)),)}


def _describe(played: _Played) -> tuple[str, ...]:
    return () if played.stuck is None else (str(played.stuck),)


def _happened(sandbox: Sandbox) -> bool:
    """Whether every planned fault happened."""
    return all(
        process.record().fault for process in sandbox.processes if process.order.fault is not None
    )


def _shut(played: _Played) -> int | None:
    """Return how many connections a scenario cut; None if it was to cut none."""
    cuts = [
        process
        for process in played.sandbox.processes
        if process.order.fault is not None and process.order.fault.what in CUTS
    ]
    return sum(process.record().shut or 0 for process in cuts) if cuts else None


def _happened_in(played: Sequence[_Played]) -> tuple[Earned, list[Finding]]:
    """Return whether every planned fault happened, for a case without violations."""
    missed = [each for each in played if not each.happened]
    if missed or not played:
        why = ("the planned fault never happened",)
        return Earned.UNKNOWN, [Finding(each.scenario.title, why) for each in missed] or [
            Finding("-", why)
        ]
    cuts = [shut for shut in map(_shut, played) if shut is not None]
    if cuts and not any(cuts):
        return Earned.NOTHING, [Finding("-", ("the sink has no connection to cut",))]
    return Earned.YES, []


def tested(sink: Sink, chunk_rows: int | None, on_reject: OnReject) -> Sink:
    """Return the sink as it is tested: small chunks, and no policy that repeats or drops events."""
    wanted: dict[str, Any] = {"on_reject": on_reject}
    if sink.on_doubt not in (OnDoubt.HOLD, OnDoubt.PROBE):
        wanted["on_doubt"] = OnDoubt.HOLD
    if sink.capability is not Capability.OPAQUE and chunk_rows is not None:
        wanted["chunk_rows"] = min(sink.chunk_rows, chunk_rows)
        wanted["span_chunks"] = min(sink.span_chunks, SPAN_CHUNKS)
    wanted = {name: value for name, value in wanted.items() if getattr(sink, name) != value}
    try:
        return replace(sink, **wanted) if wanted else sink
    except (TypeError, ValueError, SemelError):
        return sink  # it does not accept these settings: it is tested unchanged


def _modules(sink: Sink) -> dict[str, str]:
    """Return the modules that the sink's pickle refers to, with their files."""
    named = {type(sink).__module__}
    for value in vars(sink).values():
        named.add(getattr(value, "__module__", None) or type(value).__module__)
    files: dict[str, str] = {}
    for name in named:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and name != "__main__":
            files[name] = str(file)
    return files
