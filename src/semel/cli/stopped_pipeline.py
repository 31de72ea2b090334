"""The commands that stop a pipeline, or change a stopped one."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import JsonOption, LedgerOption, opened
from semel.cli.output import plain, show_json, show_table
from semel.errors import ConfigurationError
from semel.runtime import user_at_host

if TYPE_CHECKING:
    from semel.events import ByRange
    from semel.ledger import OwnerRow
    from semel.operate import ForgottenPipeline, ResetPlan, StoppedRun

_INTEGER = re.compile(r"-?[0-9]+")
RESCALE_EPILOG = (
    "Example: semel rescale charges 16 --ledger sqlite:///charges.db; or "
    "semel rescale charges 3 --range 1000,2000"
)

RESET_EPILOG = (
    'Example: semel reset charges --to \'{"payments": {"0": 1700}}\' --repeat --reason \'the bank '
    "lost the night' --ledger sqlite:///charges.db"
)

RENAME_EPILOG = "Example: semel rename charges payments --ledger sqlite:///charges.db"

FORGET_EPILOG = (
    "Example: semel forget charges --ledger sqlite:///charges.db; semel forget charges --yes; "
    "semel forget charges --yes --unsettled 3"
)

STOP_EPILOG = (
    "Example: semel stop charges --ledger sqlite:///charges.db. Exit status 1 if the run has not "
    "ended within --wait; it stays asked to stop."
)

PipelineArgument = Annotated[str, typer.Argument(help="The pipeline's name.", show_default=False)]
ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who does it.", show_default="user@host")
]


def stop(
    pipeline: PipelineArgument,
    wait_s: Annotated[
        float,
        typer.Option("--wait", min=0, metavar="SECONDS", help="How long to wait for its end."),
    ] = 300.0,
    by: ByOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a running pipeline where nothing is in doubt, and wait for its end.

    Its tasks end at the border of a window: what was sent is recorded, nothing else is begun, and
    the next start delivers the rest. A standby takes over at once; stop it first if you do not want
    that.
    """
    from semel.operate import stop_run

    def asked(owner: OwnerRow) -> None:
        if not as_json:
            print(
                f"{plain(pipeline)}: run {owner.run} on {plain(owner.process.host)} is asked to "
                "stop; waiting for the border of a window ...",
                file=sys.stderr,
            )

    with opened(ledger) as looked_at:
        done = stop_run(looked_at, pipeline, by=by or user_at_host(), wait_s=wait_s, asked=asked)
    if as_json:
        show_json(done.to_json())
    else:
        _show_stopped(done)
    if not (done.ended or done.gone):
        raise typer.Exit(1)


def _show_stopped(done: StoppedRun) -> None:
    name, took = plain(done.pipeline), f"{done.seconds:.1f} s"
    if done.taken_over is not None:
        print(f"{name}: run {done.run} ended after {took}; run {done.taken_over} took over")
    elif done.ended:
        print(f"{name}: run {done.run} ended in order after {took}")
    elif done.gone:
        print(f"{name}: the process of run {done.run} is gone; it did not end in order")
    else:
        print(
            f"{name}: run {done.run} has not ended after {took}, and stays asked to stop. A call "
            "that takes long may be running: see `semel status`"
        )
    if done.minibatch is not None:
        how = "complete" if done.complete else "not complete: the next start delivers the rest"
        print(f"minibatch {done.minibatch} is {how}; {done.in_doubt} events are in doubt")


def rescale(
    pipeline: PipelineArgument,
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
    pipeline: PipelineArgument,
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


def rename(
    pipeline: PipelineArgument,
    new: Annotated[str, typer.Argument(help="Its new name.", show_default=False)],
    by: ByOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a stopped pipeline continue under another name; nothing is lost or repeated.

    Then start it with the new name and the same checkpoint. Destinations go on to know it by its
    first name, and no other pipeline may take that. All of it is one commit.
    """
    from semel.operate import rename_pipeline

    with opened(ledger) as looked_at:
        done = rename_pipeline(looked_at, pipeline, new, by=by or user_at_host())
    if as_json:
        show_json(done.to_json())
        return
    print(
        f"{plain(done.before)} is {plain(done.pipeline)} now: start it with this name and the same "
        f"checkpoint. Destinations know it as {plain(done.known_as)}"
    )


def forget(
    pipeline: PipelineArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; otherwise only say what it would remove.")
    ] = False,
    unsettled: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Also forget this many parked events and pending partitions, as counted without "
            "--yes; another number is refused.",
            show_default=False,
        ),
    ] = None,
    by: ByOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove all rows of a stopped pipeline from the ledger.

    It first prints what it would remove, and removes it with --yes. Afterwards nothing is known of
    what was delivered: started again, the pipeline begins again. After a crash, run it again.
    """
    from semel.operate import forget_pipeline

    with opened(ledger) as looked_at:
        found = forget_pipeline(
            looked_at, pipeline, by=by or user_at_host(), unsettled=unsettled, dry_run=not yes
        )
    if as_json:
        show_json(found.to_json())
    else:
        _show_forgotten(found)


def _show_forgotten(found: ForgottenPipeline) -> None:
    show_table(("table", "rows"), sorted(found.tables.items()), right=("rows",))
    print(
        f"parked events without an outcome: {found.parked}; partitions of an incomplete "
        f"minibatch, whose events may be in doubt: {found.pending}"
    )
    name = plain(found.pipeline)
    if found.done:
        print(
            f"{name}: forgotten. Destinations keep what they have of it under the name "
            f"{plain(found.known_as)}"
        )
    elif found.unsettled:
        print(
            "Nothing was removed. Resolve these first; or forget them too: run it with --yes "
            f"--unsettled {found.unsettled}"
        )
    else:
        print("Nothing was removed: run it with --yes")
