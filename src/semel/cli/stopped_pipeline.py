"""The commands that change a stopped pipeline: `semel rescale` and `semel reset`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import JsonOption, LedgerOption, opened, user_at_host
from semel.cli.output import plain, show_json, show_table
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.events import ByRange
    from semel.operate import ResetPlan

_INTEGER = re.compile(r"-?[0-9]+")
RESCALE_EPILOG = (
    "Example: semel rescale charges 16 --ledger sqlite:///charges.db; or "
    "semel rescale charges 3 --range 1000,2000"
)

RESET_EPILOG = (
    'Example: semel reset charges --to \'{"payments": {"0": 1700}}\' --repeat --reason \'the bank '
    "lost the night' --ledger sqlite:///charges.db"
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


def reset(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITIONS",
            help="earliest, latest, or positions as in Spark's startingOffsets: "
            '\'{"topic": {"0": 17}}\'. Partitions that are not named continue.',
            show_default=False,
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.", show_default=False)],
    repeat: Annotated[
        bool,
        typer.Option("--repeat", help="Deliver again what was delivered, from there on."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; otherwise only say what it would do.")
    ] = False,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who decides.", show_default="user@host")
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a stopped pipeline begin elsewhere in its input.

    It first prints how many offsets are repeated, read again or skipped, and does it with --yes.
    Without --repeat nothing is delivered twice: with given ids, events that were never delivered
    are (a backfill), and the others are suppressed. The next start moves the old checkpoint aside.
    """
    from semel.operate import reset_pipeline

    with opened(ledger) as looked_at:
        plan = reset_pipeline(
            looked_at,
            pipeline,
            to,
            by=by or user_at_host(),
            reason=reason,
            repeat=repeat,
            dry_run=not yes,
        )
    if as_json:
        show_json(plan.to_json())
    else:
        _show_reset(plan)


def _show_reset(plan: ResetPlan) -> None:
    numbers = ("continues at", "begins at", "repeated", "read again", "skipped")
    if plan.partitions:
        show_table(
            ("source partition", *numbers),
            [
                (
                    each.partition,
                    *(
                        "unknown" if value is None else value
                        for value in (
                            each.before,
                            each.begins,
                            each.repeated,
                            each.suppressed,
                            each.skipped,
                        )
                    ),
                )
                for each in plan.partitions
            ],
            right=numbers,
        )
    words = {
        "delivered again": plan.total("repeated"),
        "read again and suppressed if they were delivered": plan.total("suppressed"),
        "skipped": plan.total("skipped"),
    }
    for what, count in words.items():
        print(f"offsets {what}: {'unknown' if count is None else count}")
    if plan.number is None:
        print("Nothing was changed: run it with --yes")
        return
    print(
        f"{plain(plan.pipeline)}: reset {plan.number} to {plan.to} (by {plain(plan.by)}). The next "
        "start moves the old checkpoint aside. `semel run` begins there; in a program, set "
        f".option('startingOffsets', '{plain(plan.starting_offsets)}')"
    )
