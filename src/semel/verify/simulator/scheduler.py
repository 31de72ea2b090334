"""The scheduler: simulated processes take turns, and time passes only when none can continue.

Always true:
- one job runs at a time, in its own greenlet, so production code stays synchronous and unchanged;
- the next job is chosen by the world's own random numbers, so the same seed gives the same turns;
- a dead process does nothing more: calls in its `finally` blocks raise `Crashed` without effect.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from semel.errors import MissingExtra
from semel.runtime import Process

try:
    from greenlet import getcurrent, greenlet
except ImportError:  # reported when a world is created
    getcurrent = greenlet = None

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

TURN_S = 0.01
"""How long a call takes."""
TURNS_MAX = 50_000
"""A world that takes more turns than this never ends."""


def require_greenlet() -> None:
    """Raise `MissingExtra` if greenlet is not installed."""
    if greenlet is None:
        raise MissingExtra("greenlet is not installed: pip install 'semel[simulate]'")


class Crashed(BaseException):
    """The process is dead. Not an `Exception`: no production code may continue after it."""


class Endless(Exception):
    """A world that never ends."""


@dataclass(eq=False)
class Actor:
    """One simulated process: a driver, a worker, or a person at a terminal."""

    name: str
    process: Process
    dead: bool = False


@dataclass(eq=False)
class Job:
    """One function, run by an actor until it returns, raises or dies."""

    actor: Actor
    title: str
    number: int
    greenlet: Any = None
    wake_at: float | None = None
    paused: bool = False
    woken: bool = False
    done: bool = False
    result: Any = None
    error: BaseException | None = None

    @property
    def crashed(self) -> bool:
        """Whether its process died."""
        return isinstance(self.error, Crashed)


@dataclass(eq=False)
class Hub:
    """Gives turns to jobs and lets time pass. `chance` chooses the next job; None: the oldest."""

    chance: Random | None = None
    now: float = 1_000_000.0
    jobs: list[Job] = field(default_factory=list)
    failed: list[Job] = field(default_factory=list)
    turns: int = 0
    turns_max: int = TURNS_MAX
    _timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)
    _pids: Any = field(default_factory=lambda: count(1))
    _main: Any = None

    def __post_init__(self) -> None:
        require_greenlet()
        self._main = getcurrent()

    # -- processes and jobs

    def actor(self, name: str) -> Actor:
        """Start a process."""
        pid = next(self._pids)
        return Actor(name, Process("simulated", "simulated", pid, f"start-{pid}"))

    def start(self, actor: Actor, title: str, call: Callable[[], Any]) -> Job:
        """Add a job; it runs when the hub runs."""
        job = Job(actor, title, next(self._numbers))

        def body() -> None:
            try:
                job.result = call()
            except BaseException as error:  # noqa: BLE001 - kept as the result of the job
                job.error = error
            job.done = True

        job.greenlet = greenlet(body, self._main)
        self.jobs.append(job)
        return job

    def kill(self, actor: Actor) -> None:
        """End a process wherever it is; called from outside it."""
        actor.dead = True
        for job in self.jobs:
            if job.actor is actor and not job.done and job is not self.current:
                job.wake_at, job.paused = None, False
                self._switch(job)
                if not job.done:
                    raise AssertionError(f"{job.title} continued after its process died")
        self.jobs = [job for job in self.jobs if not job.done]

    def end(self) -> None:
        """End every remaining process."""
        for job in list(self.jobs):
            self.kill(job.actor)

    @property
    def current(self) -> Job | None:
        """The running job; None outside of jobs."""
        running = getcurrent()
        return next((job for job in self.jobs if job.greenlet is running), None)

    # -- called by jobs

    def turn(self) -> None:
        """Begin a call: a little time passes, and another job may run first."""
        self.turns += 1
        if self.turns > self.turns_max:
            raise Endless(f"more than {self.turns_max} turns")
        self.pass_until(self.now + TURN_S)
        if getcurrent() is not self._main and self._others_ready():
            self._main.switch()

    def sleep(self, seconds: float) -> None:
        """Let time pass for the calling job; others continue."""
        self.turns += 1
        if self.turns > self.turns_max:
            raise Endless(f"more than {self.turns_max} turns")
        job = self.current
        if job is None or not self._others_before(self.now + seconds):
            self.pass_until(self.now + seconds)
            return
        job.wake_at = self.now + seconds
        self._main.switch()

    def pause(self, seconds: float | None) -> None:
        """Pause the calling job for a time, or until it is woken."""
        job = self.current
        if job is None:
            raise AssertionError("only a job can be paused")
        job.paused = True
        job.wake_at = None if seconds is None else self.now + seconds
        self._main.switch()
        job.paused = False
        job.woken = True

    def wake(self, job: Job) -> None:
        """Let a paused job continue."""
        job.paused, job.wake_at, job.woken = False, None, True

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Make a call after a time."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), call))

    # -- scheduling

    def run(self, until: Callable[[], bool]) -> None:
        """Give turns until the condition holds. Raises `Endless` if no job can continue before."""
        while not until():
            job = self._choose()
            if job is None:
                raise Endless("no job can continue")
            self._switch(job)

    def run_job(self, job: Job) -> Job:
        """Give turns until a job is done or paused."""
        self.run(lambda: job.done or job.paused)
        return job

    def settle(self) -> None:
        """Let everything end: paused jobs wake, and delayed calls arrive."""
        for job in self.jobs:
            if job.paused:
                self.wake(job)
        self.run(lambda: not self.jobs)
        while self._timers:
            self.pass_until(self._timers[0][0])

    def pass_until(self, moment: float) -> None:
        """Let time pass, and make the delayed calls that are due."""
        while self._timers and self._timers[0][0] <= moment:
            at, _, call = heapq.heappop(self._timers)
            self.now = max(self.now, at)
            call()
        self.now = max(self.now, moment)

    def _switch(self, job: Job) -> None:
        job.greenlet.switch()
        if job.done:
            self.jobs = [each for each in self.jobs if each is not job]
            if isinstance(job.error, Endless):
                raise job.error
            if isinstance(job.error, Exception):
                self.failed.append(job)

    def _choose(self) -> Job | None:
        ready = [job for job in self.jobs if not job.paused and self._due(job)]
        if not ready:
            return self._wake_next()
        chosen = ready[0] if len(ready) == 1 else self._pick(ready)
        chosen.wake_at = None
        return chosen

    def _pick(self, ready: list[Job]) -> Job:
        woken = [job for job in ready if job.woken]
        if self.chance is None:
            return (woken or ready)[0]
        return self.chance.choice(ready)

    def _wake_next(self) -> Job | None:
        """Let time pass until a job is ready."""
        waiting = [(job.wake_at, job.number, job) for job in self.jobs if job.wake_at]
        if not waiting:
            return None
        at, _, job = min(waiting, key=lambda each: each[:2])
        self.pass_until(at)
        job.wake_at, job.paused = None, False
        return job

    def _due(self, job: Job) -> bool:
        return job.wake_at is None or job.wake_at <= self.now

    def _others_ready(self) -> bool:
        return len(self.jobs) > 1 and any(
            self._due(job) and (job.wake_at is not None or not job.paused)
            for job in self.jobs
            if job.greenlet is not getcurrent()
        )

    def _others_before(self, moment: float) -> bool:
        return len(self.jobs) > 1 and any(
            not (job.paused and job.wake_at is None)
            and (job.wake_at is None or job.wake_at <= moment)
            for job in self.jobs
            if job.greenlet is not getcurrent()
        )


@dataclass(frozen=True)
class VirtualClock:
    """The clock of the simulated world, shared by all processes."""

    hub: Hub

    def monotonic(self) -> float:
        """Return the simulated time in seconds."""
        return self.hub.now

    def wall(self) -> float:
        """Return the same, rounded."""
        return round(self.hub.now, 6)

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass."""
        self.hub.sleep(seconds)
