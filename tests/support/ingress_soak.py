"""Producers that retry, two ingress processes on one stream, and SIGKILLs: what is stored then?

Always true: a producer sends a request again, unchanged, until it is acknowledged; every event has
an id. So the inbox must have each event once, with the ids that were acknowledged.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random, randrange
from typing import Any

import pyarrow as pa

from semel.errors import RangeUnavailable
from semel.runtime import SystemClock
from semel.streams import Inbox, InboxPartition
from support.ingress import CLOUD_EVENTS, Ingress, cloud_event

CLOCK = SystemClock()
STREAM = "soak"
_BATCH_MAX = 50
_WAIT_S = 20.0


def chosen_seed() -> int:
    """Give $SEMEL_SEED, else another seed for each run; print it, so that a run can be repeated."""
    seed = int(os.environ.get("SEMEL_SEED") or randrange(2**32))
    sys.stdout.write(f"SEMEL_SEED={seed}\n")
    return seed


@dataclass
class Soak:
    """One run. `seed` decides batches, entities and which process is killed; with `pruned`, events
    that a reader has completed may be gone at the end.
    """

    ledger: str
    events: int
    kills: int
    producers: int = 8
    entities: int = 50
    seed: int = field(default_factory=chosen_seed)
    pruned: bool = False
    acknowledged: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    failures: list[BaseException] = field(default_factory=list)
    """Why producers ended early."""

    def run(self) -> None:
        """Send all events while processes are killed, then check what is stored."""
        servers = [Ingress(self.ledger, STREAM) for _ in range(2)]
        began = CLOCK.monotonic()
        try:
            for server in servers:
                server.start()
            threads = [
                threading.Thread(target=self._produce, args=(number, servers))
                for number in range(self.producers)
            ]
            for thread in threads:
                thread.start()
            self._kill(servers, threads)
            for thread in threads:
                thread.join()
            self.seconds = CLOCK.monotonic() - began
            for server in servers:
                assert server.stop() == 0, server.err
        finally:
            for server in servers:
                server.kill()
        if self.failures:
            raise self.failures[0]
        self.check()

    def check(self) -> None:
        """Compare the inbox with what was acknowledged."""
        assert len(self.acknowledged) == self.events
        with Inbox(self.ledger, STREAM) as inbox:
            tables = [
                self._kept(inbox, each).select(["source", "id", "entity", "event", "value"])
                for each in inbox.layout()
            ]
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        stored: Counter[tuple[str, str]] = Counter()
        for table in tables:
            for row in table.to_pylist():
                source, entity = (row["source"], row["id"]), row["entity"]
                stored[source] += 1
                numbers[entity].append(row["event"])
                assert self.acknowledged[source] == (entity, row["event"]), source
                assert json.loads(row["value"]) == {"of": list(source)}
        assert max(stored.values(), default=1) == 1
        assert stored.keys() <= self.acknowledged.keys()
        if self.pruned:
            return
        assert stored.keys() == self.acknowledged.keys()
        for entity, found in numbers.items():
            assert found == list(range(1, len(found) + 1)), entity

    def _kept(self, inbox: Inbox, partition: InboxPartition) -> pa.Table:
        """The events of a partition, which another thread may prune meanwhile."""
        while True:
            try:
                return inbox.read(partition.partition, partition.begin, partition.end)
            except RangeUnavailable:
                [now] = [each for each in inbox.layout() if each.partition == partition.partition]
                assert self.pruned
                assert now.begin > partition.begin
                partition = now

    def _kill(self, servers: list[Ingress], threads: list[threading.Thread]) -> None:
        """Kill processes with SIGKILL, spread over the events, and start each again."""
        random = Random(self.seed)
        for number in range(1, self.kills + 1):
            goal = number * self.events // (self.kills + 1)
            while len(self.acknowledged) < goal and any(each.is_alive() for each in threads):
                CLOCK.sleep(0.005)
            if self.failures:
                return
            victim = random.choice(servers)
            victim.kill()
            self.seen["killed"] += 1
            victim.start()

    def _produce(self, number: int, servers: list[Ingress]) -> None:
        try:
            self._send_all(number, servers)
        except BaseException as failure:
            self.failures.append(failure)

    def _send_all(self, number: int, servers: list[Ingress]) -> None:
        random = Random(self.seed * 1_000 + number)
        source = f"/producer/{number}"
        count = self.events // self.producers + (number < self.events % self.producers)
        sent = 0
        while sent < count:
            size = min(random.randint(1, _BATCH_MAX), count - sent)
            ids = [str(sent + each) for each in range(size)]
            batch = [
                cloud_event(
                    id_, {"of": [source, id_]}, f"e{random.randrange(self.entities)}", source=source
                )
                for id_ in ids
            ]
            answers = self._until_acknowledged(json.dumps(batch).encode(), servers, random)
            with self._lock:
                for id_, answer in zip(ids, answers, strict=True):
                    self.acknowledged[source, id_] = answer["entity"], answer["event"]
            sent += size
        self._close()

    # -- one producer's connections

    _local: threading.local = field(default_factory=threading.local)

    def _until_acknowledged(
        self, body: bytes, servers: list[Ingress], random: Random
    ) -> list[dict[str, Any]]:
        tries = 0
        ends = CLOCK.monotonic() + 6 * _WAIT_S
        while True:
            tries += 1
            try:
                status, content = self._post(random.choice(servers).port, body)
            except (OSError, http.client.HTTPException):
                self._close()
                status, content = 0, b""
            if status == 201:
                found: list[dict[str, Any]] = json.loads(content)["events"]
                with self._lock:
                    self.seen["requests"] += 1
                    self.seen["retries"] += tries > 1
                    self.seen["repeats"] += sum(each["repeat"] for each in found)
                return found
            # 408: on a busy machine this process may take long between the head and the body.
            assert status in (0, 408, 503), (status, content)
            if status:
                with self._lock:
                    self.seen[f"answered {status}"] += 1
            assert CLOCK.monotonic() < ends, "no ingress answers"
            CLOCK.sleep(random.random() * 0.1)

    def _post(self, port: int, body: bytes) -> tuple[int, bytes]:
        links: dict[int, http.client.HTTPConnection] = self._local.__dict__.setdefault("links", {})
        if port not in links:
            links[port] = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)
        links[port].request("POST", "/v1/events", body, {"Content-Type": CLOUD_EVENTS})
        response = links[port].getresponse()
        return response.status, response.read()

    def _close(self) -> None:
        for link in self._local.__dict__.pop("links", {}).values():
            link.close()
