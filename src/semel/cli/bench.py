"""The command `semel bench`: what semel costs, against what people would use instead."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from semel.bench import overhead as measuring
from semel.bench.rows import table

app = typer.Typer(
    help="Measure semel against a peer, in turns, on this machine. Needs semel[spark].",
    no_args_is_help=True,
    rich_markup_mode=None,
)

EPILOG = (
    "Example: semel bench overhead --json. A ratio above 1 is in semel's favour where the unit is "
    "rows/s, and against it where it is ms."
)


@app.command("overhead", epilog=EPILOG)
def overhead(
    repetitions: Annotated[int, typer.Option(min=3, help="How many pairs are measured.")] = 5,
    rows: Annotated[int, typer.Option(min=1000, help="Rows of a micro-batch.")] = 1_000_000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Compare a query with semel to the same query with a plain foreachBatch.

    Both do the same cheap work on the same rows in one Spark session, in turns. The peer is
    at-least-once. Also: what a small micro-batch gains in time, and how often the ledger is
    written.
    """
    console = Console(stderr=True)
    with console.status("starting Spark") as status:
        found = measuring.measure(status.update, repetitions, rows - rows % 2)
    if as_json:
        print(json.dumps({"rows": [row.to_json() for row in found]}, indent=2))
    else:
        Console(width=max(Console().width, 120)).print(table("semel on Spark", found))
