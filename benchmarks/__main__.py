"""`python -m benchmarks NAME`: what semel costs, against what people would use instead.

Always true:
- results go to standard output, progress and errors to standard error;
- every finished run is kept under benchmarks/results, unless `--no-keep` is passed;
- the exit status is 0 when all was measured, 1 when a benchmark failed, 2 when it cannot start.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import engine as engine_benchmark
from benchmarks import results
from benchmarks.progress import BenchmarkProgress
from benchmarks.rows import table
from semel.errors import SemelError

app = typer.Typer(
    name="benchmarks",
    help=(
        "Measure semel against its peers, interleaved, on this machine. Run it in the checkout of "
        "semel: `make install` installs what it needs."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

EPILOG = (
    "Example: python -m benchmarks {name} --json. A ratio above 1 is in semel's favour where the "
    "unit is rows/s, calls/s or events/s, and against it where it is ms."
)

RepetitionsOption = Annotated[int, typer.Option(min=3, help="How many pairs are measured.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
KeepOption = Annotated[
    bool, typer.Option("--keep/--no-keep", help="Keep the result under benchmarks/results.")
]


@app.command("overhead", epilog=EPILOG.format(name="overhead"))
def overhead(
    repetitions: RepetitionsOption = 5,
    rows: Annotated[int, typer.Option(min=1000, help="Rows of a micro-batch.")] = 1_000_000,
    as_json: JsonOption = False,
    keep: KeepOption = True,
) -> None:
    """Compare a query with semel to the same query with a plain foreachBatch.

    Both do the same cheap work on the same rows in one Spark session, interleaved. The peer is
    at-least-once. Also: what a small micro-batch gains in time, and how often the ledger is
    written.
    """
    arguments = {"repetitions": repetitions, "rows": rows - rows % 2}
    _measure("overhead", "semel on Spark", as_json, keep, arguments)


@app.command("postgres", epilog=EPILOG.format(name="postgres"))
def postgres(
    repetitions: RepetitionsOption = 3, as_json: JsonOption = False, keep: KeepOption = True
) -> None:
    """Compare COPY to Spark's JDBC append, and one statement over a chunk to a dedup table."""
    _measure("postgres", "PostgreSQL", as_json, keep, {"repetitions": repetitions})


@app.command("http", epilog=EPILOG.format(name="http"))
def http(
    repetitions: RepetitionsOption = 3, as_json: JsonOption = False, keep: KeepOption = True
) -> None:
    """Count ordered calls to a service of 100 ms, beside a program without order and promise."""
    _measure("http", "HTTP", as_json, keep, {"repetitions": repetitions})


@app.command("redis", epilog=EPILOG.format(name="redis"))
def redis(
    repetitions: RepetitionsOption = 3, as_json: JsonOption = False, keep: KeepOption = True
) -> None:
    """Compare counters in Redis to SETNX and INCRBY per record, one by one and in pipelines."""
    _measure("redis", "Redis", as_json, keep, {"repetitions": repetitions})


@app.command("kafka", epilog=EPILOG.format(name="kafka"))
def kafka(
    repetitions: RepetitionsOption = 3, as_json: JsonOption = False, keep: KeepOption = True
) -> None:
    """Compare Kafka to Kafka with Flink's exactly-once, and when a record is visible.

    Flink and the broker are fetched into the user's cache the first time.
    """
    _measure("kafka", "Kafka to Kafka", as_json, keep, {"repetitions": repetitions})


@app.command("sources", epilog=EPILOG.format(name="sources"))
def sources(
    repetitions: RepetitionsOption = 5, as_json: JsonOption = False, keep: KeepOption = True
) -> None:
    """Compare semel.kafka and semel.inbox to Spark's own Kafka source, in rows per second."""
    _measure("sources", "Sources", as_json, keep, {"repetitions": repetitions})


@app.command("files", epilog=EPILOG.format(name="files"))
def files(
    repetitions: RepetitionsOption = 3, as_json: JsonOption = False, keep: KeepOption = True
) -> None:
    """Compare Parquet files to those of Spark's own streaming sink."""
    _measure("files", "Files", as_json, keep, {"repetitions": repetitions})


@app.command("engine", epilog="Example: python -m benchmarks engine --json.")
def engine(
    repetitions: RepetitionsOption = 5, as_json: JsonOption = False, keep: KeepOption = True
) -> None:
    """Measure columns, the engine and ledger commits, without Spark."""
    _measure("engine", "engine", as_json, keep, {"repetitions": repetitions})


@app.command("ledger", epilog="Example: python -m benchmarks ledger --events 100000000.")
def ledger(
    repetitions: RepetitionsOption = 3,
    events: Annotated[
        int, typer.Option(min=1_000_000, help="Events of each run that is weighed.")
    ] = 10_000_000,
    as_json: JsonOption = False,
    keep: KeepOption = True,
) -> None:
    """Deliver many events of 10,000 entities with each identity and weigh the ledger meanwhile.

    Also what a minibatch costs against its events, their entities, partitions, parked events and
    the age of the ledger. Without Spark, on SQLite. 10^8 events take about ten minutes more.
    """
    _measure("ledger", "ledger", as_json, keep, {"repetitions": repetitions, "events": events})


@app.command("metrics", epilog="Example: python -m benchmarks metrics --json.")
def metrics(
    repetitions: RepetitionsOption = 9, as_json: JsonOption = False, keep: KeepOption = True
) -> None:
    """Compare small minibatches with metrics that are scraped every second to the same without."""
    _measure("metrics", "metrics", as_json, keep, {"repetitions": repetitions})


@app.command("markers", epilog="Example: python -m benchmarks markers --json.")
def markers(as_json: JsonOption = False, keep: KeepOption = True) -> None:
    """Compare the marker clock to the best fixed interval, in simulated time, and draw the rate,
    the interval and the latency into docs/img/markers.svg.
    """
    from benchmarks import markers as measuring

    found = measuring.measure()
    result = results.describe("markers", {"seed": measuring.SEED}, {"rows": found})
    if keep:
        print(f"kept as {results.keep(result, results.RESULTS)}", file=sys.stderr)
        (results.ROOT / "docs" / "img" / "markers.svg").write_text(measuring.picture())
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        print(*map(measuring.line, found), sep="\n")


@app.command("ingress", epilog="Example: python -m benchmarks ingress --json.")
def ingress(
    repetitions: RepetitionsOption = 5, as_json: JsonOption = False, keep: KeepOption = True
) -> None:
    """Measure durable events per second over HTTP into an inbox, single requests and batches.

    Client and server run on this machine and share its cores.
    """
    _measure("ingress", "ingress", as_json, keep, {"repetitions": repetitions})


def _measure(name: str, title: str, as_json: bool, keep: bool, arguments: dict[str, int]) -> None:
    """Run a benchmark with progress; print and keep what it measured, or what it measured before
    it failed.
    """
    measuring = import_module(f"benchmarks.{name}")
    console = Console(stderr=True)
    found: Any = None
    failure = None
    with console.status("starting") as status:
        show = status.update if console.is_terminal else partial(console.print, soft_wrap=True)
        progress = BenchmarkProgress(show, measuring.LENGTH, arguments["repetitions"])
        console.print(f"benchmark {name}: {progress.estimate()}", soft_wrap=True)
        try:
            found = measuring.measure(progress, **arguments)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, SemelError) and not progress.measured and not progress.under_way:
                raise  # it could not start: the message says what is missing
            failure = progress.failed(name, error)
    if failure is not None:
        print(failure, file=sys.stderr)
        if as_json:
            print(json.dumps(failure.to_json(), indent=2))
        raise typer.Exit(1)
    shown = (
        {"tables": found} if isinstance(found, dict) else {"rows": [row.to_json() for row in found]}
    )
    result = results.describe(name, arguments, shown)
    if keep:
        print(f"kept as {results.keep(result, results.RESULTS)}", file=sys.stderr)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _show(title, found)


def _show(title: str, found: Any) -> None:
    """Print tables."""
    console = Console(width=max(Console().width, 120))
    if isinstance(found, dict):
        for each, rows in found.items():
            console.print(engine_benchmark.table(each, rows))
    else:
        console.print(table(title, found))


_USAGE: type[Exception] = typer.BadParameter.__mro__[1]
"""What a wrong option or argument raises, wherever this version of typer keeps it."""

_INTERRUPTED = 130


def main() -> None:
    """Run `python -m benchmarks`; an error is one line."""
    try:
        status = app(standalone_mode=False, prog_name="python -m benchmarks")
    except _USAGE as error:
        print(getattr(error, "format_message", error.__str__)(), file=sys.stderr)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        print("benchmarks: stopped", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except (SemelError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
