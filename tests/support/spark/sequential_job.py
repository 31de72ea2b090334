"""A driver script for several queries, one after the other; arguments: SETTINGS...

With `stops` in its settings a query is stopped after so many more charges and started again, each
time; the last start ends by itself. If it is stopped in order, that is by turns done with the query
and with the ledger alone, as `semel stop` does. `support.spark.concurrent_job` runs the same
queries at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from semel import Ledger, stop
from semel.operate import stop_run
from semel.verify.demo.charge_server import charge_client
from support.spark import faults, query_job
from support.spark.settings import Settings

Rounds = Callable[[SparkSession, list[Settings]], None]


def main(rounds: Rounds) -> None:
    every = [Settings.load(Path(path)) for path in sys.argv[1:]]
    for settings in every:
        faults.install(settings.house, settings.steps)
    rounds(query_job.session(every[0]), every)
    query_job.say("finished")


def in_turn(spark: SparkSession, every: list[Settings]) -> None:
    for settings in every:
        query_job.say(f"begin {settings.name}")
        for number, charges in enumerate(settings.stops):
            stop_after(spark, settings, charges, by_ledger=number % 2 == 1)
        start(spark, settings).awaitTermination()
        query_job.say(f"end {settings.name}")


def at_once(spark: SparkSession, every: list[Settings]) -> None:
    for query in [start(spark, settings) for settings in every]:
        query.awaitTermination()


def start(spark: SparkSession, settings: Settings) -> Any:
    return query_job.writer(settings, query_job.source(settings, spark)).start()


def stop_after(
    spark: SparkSession, settings: Settings, charges: int, *, by_ledger: bool = False
) -> None:
    """Stop the query in the middle of what it does, and say how it ended."""
    wanted = charged(settings) + charges
    query = start(spark, settings)
    while query.isActive and charged(settings) < wanted:
        time.sleep(0.01)
    cut = query.isActive
    if settings.orderly and by_ledger:
        assert settings.ledger is not None
        with Ledger(settings.ledger) as ledger:
            told = stop_run(ledger, settings.name, by="a person", wait_s=60)
        assert (told.ended, told.in_doubt) == (True, 0), told
        query.awaitTermination()
    elif settings.orderly:
        stop(query)
    else:
        query.stop()
    query_job.say(f"{'stopped' if cut else 'ended'} {settings.name}: {query.exception()}")


def charged(settings: Settings) -> int:
    return len(charge_client(settings.house).ask("/charges"))


if __name__ == "__main__":
    main(in_turn)
