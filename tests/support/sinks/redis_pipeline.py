"""A pipeline to a real Redis without Spark, and sessions with it one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from semel.events import Attempt, Chunk, Identity, Minibatch, Rows
from semel.events.ids.id_columns import Labels
from semel.sinks import Progress, Target
from semel.sinks.redis import Redis
from semel.sinks.redis.session import RedisSession
from semel.verify.servers.redis import RedisServer
from support.pipeline import GIVEN, World, events

ROW = "semel:pay/out/0"


def lists(server: RedisServer, port: int | None = None, **settings: Any) -> Redis:
    """A sink that appends the id of every event to a list of its entity: order and all shows."""
    chosen = {"command": "RPUSH", "key": "l:{c}", "arguments": ("{id}",), "chunk_rows": 3}
    url = settings.pop("url", server.url(port=port))
    return Redis(name="out", url=url, **{**chosen, **settings})


def world_with(sink: Redis, identity: Identity = GIVEN) -> World:
    """A started pipeline with one sink."""
    world = World(identity)
    world.sinks.append(sink)
    world.start()
    return world


def listed(server: RedisServer, entities: str = "abc") -> str:
    """What the lists hold: `a:1,3 b:2`."""
    found = {each: server.execute("LRANGE", f"l:{each}", 0, -1) for each in entities}
    return " ".join(f"{name}:{b','.join(ids).decode()}" for name, ids in found.items() if ids)


def target(task: int = 1, batch: int = 0, run: int = 1, partition: str = "0") -> Target:
    return Target("pay", "out", Minibatch(1, batch), partition, Attempt(run, task))


def session(sink: Redis, task: int = 1, batch: int = 0, run: int = 1) -> RedisSession:
    return sink.open(target(task, batch, run))


def chunk_of(rows: str | pa.RecordBatch, start: int = 0) -> Chunk:
    """The chunk of these rows; they begin at this place of the order."""
    batch = events(rows) if isinstance(rows, str) else rows
    scopes = Labels.of(batch.column("c"), "c")
    made = Rows(batch, pa.array(range(batch.num_rows)).to_numpy(), scopes, scopes,
                (batch.column("id"),))  # fmt: skip
    made = made.renumber(start)
    return Chunk(made, start, start + len(made), "key", 1, "pay/out/")


def progress_of(chunk: Chunk, task: int = 1, batch: int = 0, run: int = 1) -> Progress:
    """The progress that the engine sends with a chunk."""
    return Progress(
        minibatch=Minibatch(1, batch),
        attempt=Attempt(run, task),
        done=chunk.stop,
        start=chunk.start,
        osn=chunk.stop,
        digest=f"digest at {chunk.stop}",
        sort_key=chunk.rows.sort_key(len(chunk) - 1),
        ids=chunk.rows.id_sets(),
    )
