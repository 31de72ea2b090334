"""The command `semel bench`: what semel costs, against what people would use instead."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console

from semel.bench.progress import Progress
from semel.bench.rows import table
from semel.cli.options import JsonOption
from semel.errors import SemelError

app = typer.Typer(
    help="Measure semel against a peer, in turns, on this machine. Needs semel[spark].",
    no_args_is_help=True,
    rich_markup_mode=None,
)

EPILOG = (
    "Example: semel bench {name} --json. A ratio above 1 is in semel's favour where the unit is "
    "rows/s, calls/s or events/s, and against it where it is ms."
)

Repetitions = Annotated[int, typer.Option(min=3, help="How many pairs are measured.")]


@app.command("overhead", epilog=EPILOG.format(name="overhead"))
def overhead(
    repetitions: Repetitions = 5,
    rows: Annotated[int, typer.Option(min=1000, help="Rows of a micro-batch.")] = 1_000_000,
    as_json: JsonOption = False,
) -> None:
    """Compare a query with semel to the same query with a plain foreachBatch.

    Both do the same cheap work on the same rows in one Spark session, in turns. The peer is
    at-least-once. Also: what a small micro-batch gains in time, and how often the ledger is
    written.
    """
    _measure("overhead", "semel on Spark", as_json, repetitions, rows - rows % 2)


@app.command("postgres", epilog=EPILOG.format(name="postgres"))
def postgres(repetitions: Repetitions = 3, as_json: JsonOption = False) -> None:
    """Compare COPY to Spark's JDBC append, and one statement over a chunk to a dedup table."""
    _measure("postgres", "PostgreSQL", as_json, repetitions)


@app.command("http", epilog=EPILOG.format(name="http"))
def http(repetitions: Repetitions = 3, as_json: JsonOption = False) -> None:
    """Count ordered calls to a service of 100 ms, beside a program without order and promise."""
    _measure("http", "HTTP", as_json, repetitions)


@app.command("redis", epilog=EPILOG.format(name="redis"))
def redis(repetitions: Repetitions = 3, as_json: JsonOption = False) -> None:
    """Compare counters in Redis to SETNX and INCRBY per record, one by one and in pipelines."""
    _measure("redis", "Redis", as_json, repetitions)


@app.command("kafka", epilog=EPILOG.format(name="kafka"))
def kafka(repetitions: Repetitions = 3, as_json: JsonOption = False) -> None:
    """Compare Kafka to Kafka with Flink's exactly-once, and when a record is visible.

    Flink and the broker are fetched into the user's cache the first time.
    """
    _measure("kafka", "Kafka to Kafka", as_json, repetitions)


@app.command("files", epilog=EPILOG.format(name="files"))
def files(repetitions: Repetitions = 3, as_json: JsonOption = False) -> None:
    """Compare Parquet files to those of Spark's own streaming sink."""
    _measure("files", "Files", as_json, repetitions)


def _measure(name: str, title: str, as_json: bool, repetitions: int, *sizes: Any) -> None:
    """Run a benchmark with progress; print its rows, or what it measured before it failed."""
    measuring = import_module(f"semel.bench.{name}")
    console = Console(stderr=True)
    with console.status("starting") as status:
        show = status.update if console.is_terminal else partial(console.print, soft_wrap=True)
        progress = Progress(show, measuring.LENGTH, repetitions)
        found, failure = [], None
        console.print(f"semel bench {name}: {progress.estimate()}", soft_wrap=True)
        try:
            found = measuring.measure(progress, repetitions, *sizes)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, SemelError) and not progress.measured and not progress.under_way:
                raise  # it could not even start; what is missing is all there is to say
            failure = progress.failed(name, error)
    if failure is not None:
        print(failure.told(), file=sys.stderr)
        if as_json:
            print(json.dumps(failure.to_json(), indent=2))
        raise typer.Exit(1)
    if as_json:
        print(json.dumps({"rows": [row.to_json() for row in found]}, indent=2))
    else:
        Console(width=max(Console().width, 120)).print(table(title, found))
