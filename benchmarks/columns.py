"""What identity, sets and digests cost on columns: one partition, one core, no Spark.

- Every figure is the best of several passes over the same rows, in seconds and rows per second.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel.events import Counter, Digest, Given, Position, bucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.events import Identity

BATCH_ROWS = 10_000
PASSES = 3


def measure(rows: int = 1_000_000, entities: int = 100_000) -> list[dict[str, Any]]:
    """Time numbering, sets and digests over `rows` rows of `entities` entities in one partition."""
    whole = _events(rows, entities)
    pieces = _pieces(whole)
    by_entity = _pieces(whole.sort_by("customer"))
    counter, position = Counter("customer"), Position()
    given = Given("customer", ("offset",))
    stamped = counter.stamper("0").stamp(whole)
    known = stamped.slice(0, rows // 2).id_sets()
    last = stamped.slice(0, rows // 2).last_ids()
    tasks: list[tuple[str, Callable[[], object]]] = [
        ("counter numbering, one batch", lambda: counter.stamper("0").stamp(whole)),
        (f"counter numbering, batches of {BATCH_ROWS}", lambda: _stamp(counter, "0", pieces)),
        ("the same, sorted by entity", lambda: _stamp(counter, "0", by_entity)),
        ("digest, one batch", lambda: _digest([whole])),
        (f"digest, batches of {BATCH_ROWS}", lambda: _digest(pieces)),
        ("numbering and digest, one batch", lambda: _both(counter, [whole])),
        (f"numbering and digest, batches of {BATCH_ROWS}", lambda: _both(counter, pieces)),
        ("the same, sorted by entity", lambda: _both(counter, by_entity)),
        (f"position, batches of {BATCH_ROWS}", lambda: _stamp(position, "payments/3", pieces)),
        (f"given, batches of {BATCH_ROWS}", lambda: _stamp(given, "0", pieces)),
        ("id_sets", stamped.id_sets),
        ("id_sets as JSON", lambda: stamped.id_sets().to_json()),
        ("last_ids", stamped.last_ids),
        ("contained_in", lambda: stamped.contained_in(known)),
        ("at_most", lambda: stamped.at_most(last)),
        ("bucket", lambda: bucket(whole.column("customer"), 64)),
    ]
    return [_timed(name, task, rows, entities) for name, task in tasks]


def _timed(name: str, task: Callable[[], object], rows: int, entities: int) -> dict[str, Any]:
    best_s = float("inf")
    for _ in range(PASSES):
        began = time.perf_counter()
        task()
        best_s = min(best_s, time.perf_counter() - began)
    return {
        "what": name,
        "rows": rows,
        "entities": entities,
        "seconds": round(best_s, 4),
        "rows_per_s": round(rows / best_s),
    }


def _events(rows: int, entities: int) -> pa.RecordBatch:
    """Events as a payment stream has them: a key, a place, numbers, texts and some nulls."""
    random = np.random.default_rng(42)
    numbers = random.integers(0, entities, rows)
    notes = pa.array([f"note {at}" for at in range(1_000)]).take(pa.array(numbers % 1_000))
    return pa.record_batch(
        {
            "customer": pa.array([f"customer-{at}" for at in range(entities)]).take(
                pa.array(numbers)
            ),
            "topic": pa.array(["payments"] * rows),
            "partition": pa.array(np.full(rows, 3, np.int32)),
            "offset": pa.array(np.arange(rows)),
            "amount": pa.array(random.random(rows)),
            "note": notes,
            "refund": pa.array(random.integers(0, 100, rows), mask=random.random(rows) < 0.1),
        }
    )


def _pieces(whole: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The rows in batches of the size that Spark sends them in."""
    return [whole.slice(at, BATCH_ROWS) for at in range(0, whole.num_rows, BATCH_ROWS)]


def _stamp(identity: Identity, partition: str, batches: list[pa.RecordBatch]) -> None:
    stamper = identity.stamper(partition)
    for batch in batches:
        stamper.stamp(batch)


def _digest(batches: list[pa.RecordBatch]) -> str:
    whole = Digest(batches[0].schema)
    for batch in batches:
        whole.update(batch)
    return whole.hexdigest()


def _both(identity: Identity, batches: list[pa.RecordBatch]) -> str:
    stamper = identity.stamper("0")
    whole = Digest(batches[0].schema)
    for batch in batches:
        whole.update(stamper.stamp(batch).batch)
    return whole.hexdigest()
