"""The schedule of a chaos run: which fault happens when, from one seed.

Always true:
- the same seed and length give the same schedule;
- a run that is long enough has every kind at least once, the cheap ones more often;
- two faults of one target do not overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

SERVERS = ("ledger", "http", "postgres", "redis", "kafka")
FIRST_S = 5.0
"""The first fault comes when everything has delivered for this long."""
GAP_S = (3.0, 11.0)
REST_S = 1.0
"""A target has this long without a fault of its own between two; drivers have to come up."""
DRIVERS_REST_S = 25.0


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault.

    Attributes:
        targets: one of them is chosen.
        lasts_s: the shortest and the longest time until it is undone; (0, 0) if it is an instant.
        weight: how often it comes, compared with the others.
        needs_ledger: whether it only makes sense with semel: plain Spark has no ledger.
    """

    what: str
    targets: tuple[str, ...]
    lasts_s: tuple[float, float] = (0.0, 0.0)
    weight: int = 2
    needs_ledger: bool = False


KINDS: dict[str, FaultKind] = {
    "worker.kill": FaultKind("SIGKILL of Python workers", ("workers",), weight=6),
    "worker.stop": FaultKind(
        "SIGSTOP of Python workers, then SIGCONT", ("workers",), (1.0, 12.0), weight=4
    ),
    "executor.kill": FaultKind("SIGKILL of an executor", ("executors",), weight=5),
    "executor.stop": FaultKind(
        "SIGSTOP of an executor and its Python workers, then SIGCONT",
        ("executors",),
        (2.0, 12.0),
        weight=3,
    ),
    "node.kill": FaultKind(
        "SIGKILL of a Spark worker, which is started again", ("nodes",), (2.0, 6.0), weight=2
    ),
    "node.stop": FaultKind("SIGSTOP of a Spark worker, then SIGCONT", ("nodes",), (2.0, 10.0)),
    "master.kill": FaultKind(
        "SIGKILL of the Spark master, which is started again", ("master",), (1.0, 5.0)
    ),
    "master.stop": FaultKind("SIGSTOP of the Spark master, then SIGCONT", ("master",), (2.0, 10.0)),
    "driver.kill": FaultKind("SIGKILL of a driver and its JVM", ("drivers",), weight=3),
    "driver.stop": FaultKind(
        "SIGSTOP of a driver and its JVM until the standby has taken over, then SIGCONT",
        ("drivers",),
        (20.0, 30.0),
        weight=2,
        needs_ledger=True,
    ),
    "driver.drain": FaultKind(
        "`semel stop`, as for a deploy; the standby takes over",
        ("drivers",),
        weight=1,
        needs_ledger=True,
    ),
    "standby.kill": FaultKind("SIGKILL of a standby", ("standbys",), weight=1, needs_ledger=True),
    "standby.stop": FaultKind(
        "SIGSTOP of a standby, then SIGCONT",
        ("standbys",),
        (3.0, 10.0),
        weight=1,
        needs_ledger=True,
    ),
    "server.kill": FaultKind(
        "SIGKILL of a server, which is started again", SERVERS, (0.5, 4.0), weight=6
    ),
    "network.cut": FaultKind(
        "connections to a server are reset and refused", SERVERS, (0.5, 6.0), weight=7
    ),
    "network.slow": FaultKind(
        "everything that is sent to a server is late", SERVERS, (2.0, 8.0), weight=6
    ),
    "ledger.full": FaultKind(
        "the disk of the ledger is full", ("ledger",), (2.0, 6.0), needs_ledger=True
    ),
    "speculation": FaultKind(
        "drivers run with speculation, and Python workers of one executor stand still",
        ("drivers",),
        (40.0, 50.0),
        weight=1,
        needs_ledger=True,
    ),
    "parallelism": FaultKind(
        "drivers start with another number of cores and other limits", ("drivers",), weight=1
    ),
    "rescale": FaultKind(
        "`semel rescale` to another number of partitions", ("drivers",), weight=1, needs_ledger=True
    ),
    "checkpoint.delete": FaultKind(
        "drivers are killed, and a checkpoint is deleted",
        ("drivers",),
        weight=1,
        needs_ledger=True,
    ),
    "partitions.add": FaultKind("the input topic gets a partition", ("topic",), weight=1),
}


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """A fault of a schedule.

    Attributes:
        at_s: seconds after the run began.
        lasts_s: how long until it is undone.
        luck: chooses among the processes that there are, from 0 to 1.
    """

    at_s: float
    kind: str
    target: str
    lasts_s: float
    luck: float


def plan_faults(seed: int, length_s: float, *, liar: bool = False) -> tuple[ScheduledFault, ...]:
    """Return the faults of a run; `liar` leaves out what plain Spark does not have."""
    luck = Random(f"semel chaos {seed}")
    kinds = {name: kind for name, kind in KINDS.items() if not (liar and kind.needs_ledger)}
    deck = _shuffled(kinds, luck)
    busy: dict[str, float] = {}
    planned: list[ScheduledFault] = []
    at_s = FIRST_S
    while at_s < length_s:
        name = deck.pop() if deck else luck.choices([*kinds], _weights(kinds))[0]
        kind = kinds[name]
        target = luck.choice(kind.targets)
        if liar and target not in ("workers", "executors", "nodes", "master", "drivers", "topic"):
            target = luck.choice(("http", "postgres", "kafka"))
        lasts_s = round(luck.uniform(*kind.lasts_s), 1)
        begins_s = round(max(at_s, busy.get(target, 0.0)), 1)
        fault = ScheduledFault(begins_s, name, target, lasts_s, round(luck.random(), 4))
        busy[target] = begins_s + lasts_s + (DRIVERS_REST_S if target == "drivers" else REST_S)
        if begins_s < length_s:
            planned.append(fault)
        at_s += luck.uniform(*GAP_S)
    return tuple(sorted(planned, key=lambda fault: fault.at_s))


def _shuffled(kinds: dict[str, FaultKind], luck: Random) -> list[str]:
    names = sorted(kinds)
    luck.shuffle(names)
    return names


def _weights(kinds: dict[str, FaultKind]) -> list[int]:
    return [kind.weight for kind in kinds.values()]
