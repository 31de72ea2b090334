"""DBOS, a durable-execution engine, making calls; run by the Python of a venv of its own.

`python durable_job.py`, and on standard input one line of JSON: `{"url": ..., "database": ...,
"in_flight": ..., "entities": [[body, ...], ...]}`. A workflow for each entity, a step for each
call, so calls are in order per entity and each is remembered. On standard output it says how many
seconds they took. It imports nothing of semel's, and nothing of semel's imports it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from time import perf_counter
from typing import Any


async def run(told: dict[str, Any]) -> float:
    """Make all calls and give the seconds, start of the engine aside."""
    aiohttp, dbos = importlib.import_module("aiohttp"), importlib.import_module("dbos").DBOS
    room = asyncio.Semaphore(told["in_flight"])
    connector = aiohttp.TCPConnector(limit=told["in_flight"])
    async with aiohttp.ClientSession(connector=connector) as client:

        async def call(body: dict[str, Any]) -> None:
            async with client.post(told["url"], json=body) as reply:
                await reply.read()
                reply.raise_for_status()

        step = dbos.step()(call)

        async def entity(bodies: list[dict[str, Any]]) -> None:
            for body in bodies:
                await step(body)

        workflow = dbos.workflow()(entity)
        dbos(
            config={
                "name": "bench",
                "system_database_url": told["database"],
                "run_admin_server": False,
                "log_level": "ERROR",
            }
        )
        dbos.launch()

        async def one(bodies: list[dict[str, Any]]) -> None:
            async with room:
                await (await dbos.start_workflow_async(workflow, bodies)).get_result()

        began = perf_counter()
        await asyncio.gather(*(one(bodies) for bodies in told["entities"]))
        took = perf_counter() - began
        dbos.destroy()
        return took


def main() -> None:
    """Do what comes in."""
    uvloop = importlib.import_module("uvloop")
    print(json.dumps(uvloop.run(run(json.loads(sys.stdin.readline())))), flush=True)


if __name__ == "__main__":
    main()
