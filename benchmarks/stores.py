"""How many commits a store does in a second, when each is like the claim of a partition.

A claim requires one row that all share (`open`) and puts a row of its own that must be absent.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any
from uuid import uuid4

from semel.ledger import make_key, make_prefix, open_store
from semel.ledger.payloads import dump_payload
from semel.ledger.store import Absent, Equals, Put, Sweep


def measure(url: str, seconds: float = 3, threads: int = 16) -> dict[str, Any]:
    """Commit claims to the store at `url` from so many threads, and remove them again.

    Gives the commits per second, and the median and slowest commit in milliseconds.
    """
    store = open_store(url)
    pipeline = f"bench-{uuid4().hex}"
    shared = make_key("open", pipeline)
    opened = dump_payload({"batch": 7, "generation": 1, "partitions": threads, "run": 3})
    store.commit([Absent(shared)], [Put(shared, opened)])
    ends = perf_counter() + seconds

    def claim(partition: int) -> list[float]:
        took: list[float] = []
        began = perf_counter()
        while began < ends:
            own = make_key("streams", pipeline, "sink", len(took), partition)
            claimed = dump_payload({"attempt": [3, len(took)], "count": 1000, "state": "pending"})
            store.commit([Equals(shared, opened), Absent(own)], [Put(own, claimed)])
            now = perf_counter()
            took.append(now - began)
            began = now
        return took

    began = perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        took = sorted(each for mine in pool.map(claim, range(threads)) for each in mine)
    elapsed = perf_counter() - began
    rows = Sweep("streams", make_prefix(pipeline))
    store.commit([], [Sweep("open", shared.key), rows])
    store.close()
    return {
        "threads": threads,
        "commits": len(took),
        "commits_per_s": round(len(took) / elapsed),
        "median_ms": round(took[len(took) // 2] * 1000, 3),
        "slowest_ms": round(took[-1] * 1000, 3),
    }
