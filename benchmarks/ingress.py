"""Measures the ingress: durable events per second over HTTP, clients and servers on one machine.

Always true: an event counts when it was acknowledged, and it is acknowledged when it is durable.
Clients and servers are processes of their own and share the cores; each server has one client.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ingress_load import KINDS
from benchmarks.rounds import folder
from semel.verify.servers.postgres import PostgresServer
from support.ingress import Ingress, environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.progress import BenchmarkProgress

LENGTH = None
SECONDS = 5.0
WARM_S = 1.0
CONNECTIONS = {"single": 64, "batch": 8, "ndjson": 8}
NAMES = {
    "single": "one CloudEvent in a request",
    "batch": "100 CloudEvents in a request",
    "ndjson": "100 lines of NDJSON in a request, no ids",
}
_WITHIN_S = 120


def measure(say: BenchmarkProgress, repetitions: int = 5) -> dict[str, list[dict[str, Any]]]:
    """Measure each kind of request on both ledgers; return the rows of each table by its title."""
    found = {}
    with folder() as place:
        found["ledger in SQLite"] = _ledger(say, f"sqlite:///{place}/ledger.db", repetitions)
    server = PostgresServer(durable=True)
    try:
        url = server.url(server.create())
        found["ledger in PostgreSQL"] = _ledger(say, url, repetitions)
        url = server.url(server.create())
        both = "ledger in PostgreSQL, two processes on one stream"
        found[both] = _ledger(say, url, repetitions, processes=2)
    finally:
        server.close()
    return found


def _ledger(
    say: BenchmarkProgress, ledger: str, repetitions: int, processes: int = 1
) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(Ingress(ledger, "bench")) for _ in range(processes)]
        for kind in KINDS:
            _load(servers, kind, WARM_S)
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for number in range(1, repetitions + 1):
            for kind in KINDS:
                what = f"{ledger.partition(':')[0]}, {processes} process(es): {NAMES[kind]}"
                measured = say.run(
                    what,
                    number,
                    repetitions,
                    "semel ingest",
                    "requests/s, events/s, ms, ms, s, s",
                    partial(_figures, servers, kind),
                )
                runs[kind].append(dict(zip(_FIGURES, measured, strict=True)))
        for server in servers:
            assert server.stop() == 0
    return [_row(kind, found) for kind, found in runs.items()]


_FIGURES = ("requests/s", "events/s", "p50 ms", "p99 ms", "client CPU s", "server CPU s")


def _figures(servers: Sequence[Ingress], kind: str) -> tuple[float, ...]:
    return tuple(_load(servers, kind, SECONDS).values())


def _load(servers: Sequence[Ingress], kind: str, seconds: float) -> dict[str, float]:
    """Load each server with a client of its own, at the same time: sums, and the longest times."""
    with ThreadPoolExecutor(len(servers)) as clients:
        found = list(clients.map(partial(_load_one, kind=kind, seconds=seconds), servers))
    longest = ("p50 ms", "p99 ms")
    return {
        name: (max if name in longest else sum)(each[name] for each in found) for name in _FIGURES
    }


def _load_one(ingress: Ingress, kind: str, seconds: float) -> dict[str, float]:
    """Load an ingress with the client in a process of its own."""
    before = _cpu_s(ingress.process.pid)
    done = subprocess.run(  # noqa: S603 - fixed arguments
        [
            *(sys.executable, "-m", "benchmarks.ingress_load"),
            *(str(ingress.port), kind, str(CONNECTIONS[kind]), str(seconds)),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the client ended with {done.returncode}: {done.stderr[-1000:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return {**figures, "server CPU s": _cpu_s(ingress.process.pid) - before}


def _cpu_s(pid: int) -> float:
    """The CPU time that a process has used, in hundredths of a second as Linux counts it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _row(kind: str, runs: list[dict[str, float]]) -> dict[str, Any]:
    """The medians of the runs of one kind, and the spread of its rate."""
    medians = {name: statistics.median(each[name] for each in runs) for name in _FIGURES}
    rates = [each["events/s"] for each in runs]
    return {
        "what": NAMES[kind],
        "connections": CONNECTIONS[kind],
        **medians,
        "events/s, lowest": min(rates),
        "events/s, highest": max(rates),
    }
