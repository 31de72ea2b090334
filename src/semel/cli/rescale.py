"""The command `semel rescale`: another number of partitions for a pipeline that stands still."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from semel.cli.options import LedgerOption, choose_pipeline, opened
from semel.cli.output import JsonOption, plain, show_json
from semel.cli.status import read_standing
from semel.errors import ConfigurationError
from semel.events.routing import ByRange, by_range
from semel.ledger import ROUTING, LedgerClient, Owners, rescale_pipeline

_INTEGER = re.compile(r"-?[0-9]+")
EPILOG = (
    "Example: semel rescale charges 16 --ledger sqlite:///charges.db; or "
    "semel rescale charges 3 --range 1000,2000"
)


def rescale(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.", show_default=False)],
    partitions: Annotated[
        int, typer.Argument(min=1, help="How many partitions from now on.", show_default=False)
    ],
    bounds: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="BOUNDS",
            help="Spread entities by ranges from now on, as by_range: bounds with commas between; "
            'digits are integers, "7" in double quotes is a text.',
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

    The query has to be stopped, and its last minibatch complete. Afterwards start it with the new
    number, or without `partitions`.
    """
    with opened(ledger) as (looking, store):
        name = choose_pipeline(looking, pipeline)
        standing = read_standing(looking, name)
        if standing["state"] == "beating":
            raise ConfigurationError(
                f"run {standing['run']} of pipeline {name!r} is beating: the number of partitions "
                "changes while nobody works with them. Stop the query first"
            )
        client = LedgerClient(store, name)
        routing = _routing(client, partitions, bounds, by_hash=by_hash)
        rescale_pipeline(client, partitions, routing)
    told = {"pipeline": name, "partitions": partitions}
    if as_json:
        show_json(told)
    else:
        print(f"{plain(name)}: {partitions} partitions from the next minibatch on")


def _routing(
    client: LedgerClient, partitions: int, bounds: str | None, *, by_hash: bool
) -> ByRange | None:
    """Give how entities are spread from now on; None is by their hash. Refuse to guess it."""
    if bounds is not None and not by_hash:
        parts = [each.strip() for each in bounds.split(",")]
        numbers = all(_INTEGER.fullmatch(each) for each in parts)
        texts = [each.strip('"') for each in parts]
        made = by_range([int(each) for each in parts] if numbers else texts)
        if made.partitions != partitions:
            raise ConfigurationError(
                f"--range {bounds} makes {made.partitions} partitions, and {partitions} are asked "
                "for: make both the same"
            )
        return made
    if bounds is not None:
        raise ConfigurationError("pass --range or --hash, not both")
    known = (Owners(client).described() or {}).get(ROUTING)
    if known is not None and not by_hash:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} spreads its entities by {known['kind']}: pass --range "
            "BOUNDS or --hash. For another directory start a new pipeline under another name"
        )
    return None
