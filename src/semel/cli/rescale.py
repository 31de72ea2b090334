"""The command `semel rescale`: another number of partitions for a stopped pipeline."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import JsonOption, LedgerOption, opened
from semel.cli.output import plain, show_json
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.events import ByRange

_INTEGER = re.compile(r"-?[0-9]+")
EPILOG = (
    "Example: semel rescale charges 16 --ledger sqlite:///charges.db; or "
    "semel rescale charges 3 --range 1000,2000"
)


def rescale(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.", show_default=False)],
    partitions: Annotated[
        int, typer.Argument(min=1, help="The new number of partitions.", show_default=False)
    ],
    bounds: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="BOUNDS",
            help="Spread entities by ranges from now on, as by_range does: bounds separated by "
            'commas. Digits are integers; "7" in double quotes is a text.',
            show_default=False,
        ),
    ] = None,
    by_hash: Annotated[
        bool, typer.Option("--hash", help="Spread entities by their hash from now on.")
    ] = False,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Spread the entities of a pipeline over another number of partitions, or in another way.

    The query must be stopped, and its last minibatch complete. Then start it with the new number,
    or without `partitions`.
    """
    from semel.operate import rescale_pipeline

    if bounds is not None and by_hash:
        raise ConfigurationError("pass --range or --hash, not both")
    with opened(ledger) as looked_at:
        routing = None if bounds is None else _read_bounds(bounds)
        done = rescale_pipeline(looked_at, pipeline, partitions, routing, by_hash=by_hash)
    if as_json:
        show_json(done.to_json())
    else:
        print(f"{plain(done.pipeline)}: {done.partitions} partitions from the next minibatch on")


def _read_bounds(typed: str) -> ByRange:
    from semel.events import by_range

    parts = [each.strip() for each in typed.split(",")]
    if all(_INTEGER.fullmatch(each) for each in parts):
        return by_range([int(each) for each in parts])
    return by_range([each.strip('"') for each in parts])
