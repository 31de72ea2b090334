"""The command `semel rescale`: another number of partitions for a pipeline that stands still."""

from __future__ import annotations

from typing import Annotated

import typer

from semel.cli.ledgers import LedgerOption, choose_pipeline, opened
from semel.cli.showing import JsonOption, plain, show_json
from semel.cli.status import read_standing
from semel.errors import ConfigurationError
from semel.ledger import Scribe, rescaling

EPILOG = "Example: semel rescale charges 16 --ledger sqlite:///charges.db"


def rescale(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.", show_default=False)],
    partitions: Annotated[
        int, typer.Argument(min=1, help="How many partitions from now on.", show_default=False)
    ],
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Spread the entities of a pipeline over another number of partitions.

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
        rescaling.rescale(Scribe(store, name), partitions)
    told = {"pipeline": name, "partitions": partitions}
    if as_json:
        show_json(told)
    else:
        print(f"{plain(name)}: partitions = {partitions} from the next minibatch on")
