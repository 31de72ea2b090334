"""A chaos run: the stage is started, the schedule happens to it, and the checker judges the rest.

Always true:
- the faults are those of the seed; which process each hits depends on what there is at that moment;
- every fault is undone before the rest is awaited; nothing is stopped then, so a doubt may be
  decided;
- what was started is ended, however the run ends.
"""

from __future__ import annotations

import heapq
import platform
from collections import Counter, deque
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING

from semel import __version__
from semel.errors import LedgerError, SemelError
from semel.protocol import Capability
from semel.runtime import SystemClock
from semel.verify.chaos.actions import BegunFault, NotPossible, begin
from semel.verify.chaos.checker import SinkEvidence, judge_sink, recovery_times
from semel.verify.chaos.job import PARTITIONS_MAX, WINDOW
from semel.verify.chaos.report import ChaosReport, SinkResult, TimedFault
from semel.verify.chaos.schedule import KINDS, plan_faults
from semel.verify.chaos.stage import ChaosStage
from semel.verify.chaos.witnesses import Generator, Witnesses
from semel.verify.process_group import Closable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from semel.verify.chaos.checker import WitnessedEffect
    from semel.verify.chaos.schedule import ScheduledFault

RATE = 12.0
"""Events per second: two cores have Spark, four servers and two drivers to run beside."""
SLOW_RATE = 5.0
"""While the rest is awaited."""
UP_WITHIN_S = 240.0
DRAIN_WITHIN_S = 480.0
PATIENCE, AGAIN_S = 6, 4.0
"""Drivers and executors of a busy machine take so long to come up."""
DEAD_S = 40.0
CALM_S = 20.0
"""More than `lease_s` and `deadline_s` of the sink that may leave doubts."""
STANDS_STILL = {"speculation", *(kind for kind in KINDS if kind.endswith(".stop"))}
CAPABILITIES = {
    "http": Capability.OPAQUE,
    "postgres": Capability.TRANSACTIONAL,
    "redis": Capability.TRANSACTIONAL,
    "kafka": Capability.TRANSACTIONAL,
}


class ChaosRun(Closable):
    """One run; `report` is called with each step, `show` with the figures of now."""

    def __init__(
        self,
        seed: int,
        minutes: float,
        report: Callable[[str], None],
        show: Callable[[float, dict[str, int]], None],
        *,
        liar: bool = False,
        kafka_jars: Path | None = None,
    ) -> None:
        self._seed, self._minutes, self._liar = seed, minutes, liar
        self._report, self._show = report, show
        self._clock = SystemClock()
        self._planned = plan_faults(seed, minutes * 60, liar=liar)
        self._faults: list[tuple[ScheduledFault, float, float, str, str | None]] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._resolved = 0
        self._standing = 0
        self._busy: set[str] = set()
        self._calm_since = self._decided = self._clock.monotonic()
        self._generator: Generator | None = None
        self._stage = ChaosStage(report, liar=liar, kafka_jars=kafka_jars)
        self._witnesses = Witnesses(self._stage)

    def close(self) -> None:
        """End everything that was started."""
        try:
            self._stage.close()
        finally:
            if self._generator is not None:
                self._generator.abandon()

    def play(self) -> ChaosReport:
        """Let the schedule happen, wait for the rest, and judge.

        Raises `RuntimeError` if the pipelines do not start.
        """
        self._report("starting two drivers: two pipelines, and a standby of each")
        stage = self._stage
        self._generator = Generator(stage.kafka.servers, self._seed, RATE, stage.input_held)
        self._stage.await_running(UP_WITHIN_S)
        self._report(f"{len(self._planned)} faults are planned with seed {self._seed}")
        began, wall = self._clock.monotonic(), self._clock.wall()
        self._happen(began)
        self._report("every fault is over; waiting until the rest is delivered")
        drained_s = self._drain()
        self._stage.stop_drivers()
        return self._judge(wall, drained_s)

    # -- the schedule

    def _happen(self, began: float) -> None:
        """Let every fault happen when it is due, and end.

        The clock of the schedule stands still while no driver has a pipeline, for `DEAD_S` at most:
        a fault that meets nothing shows nothing.
        """
        planned, live_s, dead_s, last = deque(self._planned), 0.0, 0.0, began
        while planned or self._due or live_s < self._minutes * 60:
            now = self._clock.monotonic()
            dead_s = 0.0 if self._stage.active() else dead_s + now - last
            if dead_s == 0.0 or dead_s > DEAD_S:
                live_s += now - last
            last = now
            while planned and planned[0].at_s <= live_s:
                self._begin(planned.popleft(), began)
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            self._stage.look()
            self._decide()
            self._tell(live_s)
            self._clock.sleep(0.2)

    def _push(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), act))

    def _begin(self, fault: ScheduledFault, began: float, patience: int = PATIENCE) -> None:
        """Let a fault happen; if there is nothing yet that it could happen to, try again soon."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        if fault.target in self._busy:  # an earlier fault of it began late
            self._push(now + 1, lambda: self._begin(fault, began, patience))
            return
        try:
            begun = begin(self._stage, fault)
        except (NotPossible, LedgerError) as error:
            if patience and fault.kind not in {"rescale", *self._stage.absent}:
                self._push(now + AGAIN_S, lambda: self._begin(fault, began, patience - 1))
                return
            self._faults.append((fault, now - began, wall, "", str(error)))
            self._report(f"{now - began:4.0f} s  {fault.kind}: not possible: {error}")
            return
        self._report(f"{now - began:4.0f} s  {fault.kind}: {begun.what}")
        place = len(self._faults)
        self._faults.append((fault, now - began, wall, begun.what, None))
        for after_s, act in begun.later:
            self._push(now + after_s, act)
        self._busy.add(fault.target)
        self._standing += fault.kind in STANDS_STILL
        self._push(now + fault.lasts_s, lambda: self._end(place, begun))

    def _end(self, place: int, begun: BegunFault) -> None:
        more = begun.undo()
        fault, at_s, wall, what, why = self._faults[place]
        self._busy.discard(fault.target)
        self._faults[place] = (fault, at_s, wall, what + more, why)
        if fault.kind in STANDS_STILL:
            self._standing -= 1
            self._calm_since = self._clock.monotonic()

    def _decide(self) -> None:
        """Decide about doubts, as a person does while the pipeline runs, if every process that was
        stopped has gone on long enough to do what it was about to do.
        """
        now = self._clock.monotonic()
        if self._liar or self._standing or now < max(self._calm_since, self._decided) + CALM_S:
            return
        self._decided = now
        try:
            self._resolved += self._witnesses.resolve_held(CALM_S)
        except (SemelError, OSError) as error:
            self._report(f"the ledger is away, so nothing was decided: {error}")

    def _tell(self, elapsed_s: float) -> None:
        assert self._generator is not None
        happened = sum(why is None for *_, why in self._faults)
        counts = {"events": len(self._generator.produced), "faults": happened}
        self._show(min(elapsed_s / 60, self._minutes), counts)

    # -- the end

    def _drain(self) -> float | None:
        """Wait until every sink has every event; return how long it took, None if it did not.

        An event that was released is sent before the next minibatch, so there have to be some: the
        input ends when nothing waits any more.
        """
        assert self._generator is not None
        began, missing = self._clock.monotonic(), {"all": 1}
        self._generator.rate = SLOW_RATE
        while (passed := self._clock.monotonic() - began) < DRAIN_WITHIN_S:
            self._stage.look()
            waits = not self._liar and self._waits()
            if not waits:
                self._generator.close()
            missing = self._missing()
            self._show(self._minutes, {"missing": sum(missing.values())})
            if not any(missing.values()) and not waits:
                return passed
            if not self._liar:
                self._resolved += self._witnesses.resolve_held(CALM_S)
            self._clock.sleep(1.0)
        self._generator.close()
        self._report(f"after {DRAIN_WITHIN_S:.0f} s events are missing: {missing}")
        return None

    def _missing(self) -> dict[str, int]:
        """Return how many events each sink does not have."""
        assert self._generator is not None
        wanted = {(each.entity, each.event) for each in self._generator.produced}
        return {
            sink: len(wanted - {(each.entity, each.event) for each in effects})
            for sink, effects in self._witnesses.effects().items()
        }

    def _waits(self) -> bool:
        """Whether an event still waits for a person or to be sent."""
        parked = self._witnesses.parked()
        return any(not fact.state.final for facts in parked.values() for fact in facts)

    def _judge(self, wall: float, drained_s: float | None) -> ChaosReport:
        assert self._generator is not None
        produced = self._generator.produced
        effects, parked = self._witnesses.effects(), self._witnesses.parked()
        happened = [each for each in self._faults if each[4] is None]
        allowed = WINDOW * PARTITIONS_MAX * len(happened)
        times = iter(recovery_times([each[2] for each in happened], effects.values()))
        sinks = []
        for sink, found in effects.items():
            capability = None if self._liar else CAPABILITIES[sink]
            evidence = SinkEvidence(
                sink, capability, found, parked[sink], allowed, ended=drained_s is not None
            )
            named = (sink, "none" if capability is None else capability.value)
            assessment = judge_sink(produced, evidence)
            doubts = allowed if sink == "http" and not self._liar else 0
            sinks.append(SinkResult.of(named, assessment, doubts, _per_second(found, wall)))
        return ChaosReport(
            seed=self._seed,
            minutes=self._minutes,
            liar=self._liar,
            versions=_versions(),
            events=len(produced),
            faults=tuple(
                TimedFault(
                    round(at_s, 1),
                    fault.kind,
                    fault.target,
                    fault.lasts_s,
                    what,
                    why,
                    _rounded(next(times)) if why is None else None,
                )
                for fault, at_s, _, what, why in self._faults
            ),
            sinks=tuple(sinks),
            resolved=self._resolved,
            drained_s=_rounded(drained_s),
            notes=tuple(self._stage.ended),
        )


def _per_second(effects: list[WitnessedEffect], wall: float) -> list[int]:
    """Return how many effects each second of the run had."""
    seconds = Counter(int(effect.at - wall) for effect in effects if effect.at >= wall)
    return [seconds[each] for each in range(max(seconds, default=-1) + 1)]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _versions() -> dict[str, str]:
    return {
        "semel": __version__,
        "spark": version("pyspark"),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
