"""The commands on parked events: `semel parked ls`, `show`, `export`, `import`; `semel resolve`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import JsonOption, LedgerOption, opened
from semel.cli.output import (
    ProgressLine,
    ago,
    plain,
    shorten,
    show_json,
    show_pairs,
    show_table,
)
from semel.errors import ConfigurationError
from semel.runtime import user_at_host

if TYPE_CHECKING:
    from semel.operate import BulkDecision, ParkedEvent, ParkedEvents, ParkedImport

LS_EPILOG = (
    "Example: semel parked ls charges --ledger sqlite:///charges.db. The first two columns are the "
    "names of an event for `semel parked show` and `semel resolve`: short and full."
)
SHOW_EPILOG = "Example: semel parked show @3f9a2c --ledger sqlite:///charges.db"
EventArgument = Annotated[
    str,
    typer.Argument(
        metavar="EVENT",
        help="As `semel parked ls` prints it: @3f9a2c, or PIPELINE/SINK/ENTITY/EVENT; the parts "
        "before ENTITY may be left out.",
        show_default=False,
    ),
]

ByOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who decides.", show_default="user@host")
]
WHERE_HELP = (
    "Only events that fit, as in 'sink=charge and why~timeout'. Fields: pipeline, sink, entity, "
    "event, state, why, since, age, minibatch, partition; = != ~ !~ < > <= >=, and, or, not, ()."
)

GROUPS_SHOWN = 20

app = typer.Typer(
    help="Events that are in doubt, rejected, or waiting behind one of these.",
    no_args_is_help=True,
    epilog="Example: semel parked ls --ledger sqlite:///charges.db",
)


@app.command("ls", epilog=LS_EPILOG)
def list_parked(
    pipeline: Annotated[
        str | None, typer.Argument(help="Only this pipeline.", show_default=False)
    ] = None,
    also_final: Annotated[
        bool, typer.Option("--all", help="Also events that are delivered, discarded or skipped.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, help="List at most so many, if there are very many.")
    ] = 1_000,
    after: Annotated[
        str,
        typer.Option(metavar="KEY", help="Go on after a list that was cut.", show_default=False),
    ] = "",
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List parked events: those that wait for a person, and those that wait for another event.

    State `held` is in doubt, `rejected` is a dead letter: both wait for `semel resolve`. `waiting`
    is behind another event of its entity; `resend` and `sending` are about to be sent again.
    """
    from semel import operate

    with opened(ledger) as looked_at:
        found = operate.list_parked(
            looked_at, pipeline, also_final=also_final, limit=limit, after=after
        )
    if found.next_after is not None:
        print(
            f"there may be more than these {len(found.events)}: go on with --after "
            f"{shlex.quote(found.next_after)}, or export them all with `semel parked export`",
            file=sys.stderr,
        )
    if as_json:
        show_json(found.to_json())
    elif not found.events and not found.damaged and found.next_after is None:
        print("nothing is parked")
    else:
        _show_list(found)
    operate.refuse_damaged(found.damaged)


def _show_list(found: ParkedEvents) -> None:
    from semel.operate import utc_text

    show_table(
        ("short", "event", "state", "why", "since", "resends", "behind"),
        [
            (
                each.short,
                each.handle,
                each.row.state.value,
                shorten(each.row.why) if sys.stdout.isatty() else each.row.why,
                utc_text(each.row.at),
                each.row.attempts,
                each.behind,
            )
            for each in found.events
        ]
        + [("-", each.key, "damaged", each.what, None, None, None) for each in found.damaged],
        right=("resends", "behind"),
    )


@app.command("show", epilog=SHOW_EPILOG)
def show_parked(
    event: EventArgument, ledger: LedgerOption = None, as_json: JsonOption = False
) -> None:
    """Show everything about one parked event, with its payload."""
    from semel.operate import read_parked_event

    with opened(ledger) as looked_at:
        found, row = read_parked_event(looked_at, event)
    if as_json:
        show_json(found.to_json() | {"row": row})
    else:
        _show_event(found)


def _show_event(found: ParkedEvent) -> None:
    from semel.operate import age_s, utc_text

    row = found.row
    show_pairs(
        [
            ("event", found.handle),
            ("short", found.short),
            ("pipeline", found.pipeline),
            ("sink", found.sink),
            ("entity", row.shown or row.entity),
            *([("source partition", row.scope)] if row.scope != row.entity else []),
            ("event id", row.event),
            ("minibatch", row.minibatch),
            ("partition", f"{row.partition}, position {row.position}"),
            ("OSN", row.osn),
            ("state", f"{row.state.value}: {found.meaning}"),
            ("why", row.why),
            ("since", f"{utc_text(row.at)} ({ago(age_s(row.at))})"),
            ("resends", row.attempts),
            (found.doubt, "yes" if row.doubted else "no"),
            ("blocks its entity", "yes" if found.blocks else "no"),
            ("waiting behind it", found.behind),
            *([("resolved by", row.by), ("reason", row.reason)] if row.by else []),
            *(
                [
                    ("edited by", f"{row.edited.by}, {utc_text(row.edited.at)}"),
                    ("reason of the edit", row.edited.reason),
                ]
                if row.edited
                else []
            ),
        ]
    )
    if row.trace is not None:
        print("traceback of the first call that failed with this error:")
        for line in row.trace.splitlines():
            print(f"  {plain(line)}")
    if row.value is None:
        print("payload: none yet; it is recorded when the query reads the event again")
        return
    print("payload:")
    for name, value in row.value.items():
        print(f"  {plain(name)}: {plain(repr(value))}")
    if row.edited is not None:
        print("payload before it was edited:")
        for name, value in row.edited.before.items():
            print(f"  {plain(name)}: {plain(repr(value))}")


EXPORT_EPILOG = (
    "Example: semel parked export charges --where 'state=rejected' --ledger sqlite:///charges.db "
    "> parked.jsonl"
)
IMPORT_EPILOG = (
    "Example: semel parked import parked.jsonl --dry-run --reason 'the currency was missing' "
    "--ledger sqlite:///charges.db"
)


@app.command("export", epilog=EXPORT_EPILOG)
def export_parked(
    pipeline: Annotated[
        str | None, typer.Argument(help="Only this pipeline.", show_default=False)
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="FILTER", help=WHERE_HELP, show_default=False)
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print parked events as JSON lines, with their payloads, for `semel parked import`.

    Events in a final state are left out, unless a filter chooses them. It is always JSON.
    """
    del as_json
    from semel.operate import choose_pipeline, export_parked, read_filter

    chooses = None if where is None else read_filter(where)
    progress = ProgressLine("events read")
    with opened(ledger) as looked_at:
        name = None if pipeline is None else choose_pipeline(looked_at, pipeline)
        for line in export_parked(looked_at, name, chooses, progress.show):
            sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()


@app.command("import", epilog=IMPORT_EPILOG)
def import_parked(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Lines of `semel parked export`, with edited payloads.",
            show_default=False,
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file, and change nothing.")
    ] = False,
    by: ByOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record edited payloads; the events are sent again under their old identity.

    A dead letter that was edited is released, as by `semel resolve EVENT resend`. An event that is
    in doubt may have arrived as it was: it can be edited once it was released. Lines that were not
    edited change nothing. If any line is wrong, nothing is imported.
    """
    from semel.operate import import_parked

    progress = ProgressLine("lines read")
    with opened(ledger) as looked_at:
        found = import_parked(
            looked_at,
            file,
            by=by or user_at_host(),
            reason=reason,
            dry_run=dry_run,
            progress=progress.show,
        )
    if as_json:
        show_json(found.to_json())
    else:
        _show_import(found)


def _show_import(found: ParkedImport) -> None:
    would = "" if found.done else "would be "
    print(
        f"{found.lines} events read: {found.edited} {would}edited, {found.released} of them "
        f"{would}released to be sent again; {found.unchanged} unchanged"
    )
    if found.examples:
        print("for example " + ", ".join(map(plain, found.examples)))
    if found.changed:
        print(
            f"{found.changed} were changed by the query or another person meanwhile, and not "
            "edited: export them again"
        )
    if not found.done:
        print("nothing was changed: run it without --dry-run")


RESOLVE_EPILOG = (
    "Example: semel resolve @3f9a2c delivered --reason 'seen in the mailbox' "
    "--ledger sqlite:///charges.db. For a minibatch that diverged: semel resolve charges/1.57 "
    "as-recorded --reason 'the query sorted by a random number'"
)


def resolve(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[EVENT] DECISION",
            help="EVENT as `semel parked ls` prints it: @3f9a2c, or PIPELINE/SINK/ENTITY/EVENT; or "
            "a minibatch that diverged: PIPELINE/GENERATION.BATCH; nothing with --where. DECISION "
            "for an event: delivered (it arrived), resend, or discard; for a minibatch: "
            "as-recorded (the delivered events stand) or as-replayed (all of it is delivered "
            "again).",
            show_default=False,
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.", show_default=False)],
    where: Annotated[
        str | None, typer.Option(metavar="FILTER", help=WHERE_HELP, show_default=False)
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="With --where: record the decisions; otherwise only count."),
    ] = False,
    by: ByOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide what happens to an event that is in doubt or rejected, or to all that fit a filter,
    or which rows of a diverged minibatch are right.

    Events that wait behind a resolved event continue as soon as the pipeline runs. A minibatch is
    judged while the query is stopped; the next start acts on it. The command may be repeated: the
    same decision again changes nothing.

    With --where it first prints how many events it would resolve, and resolves them with --yes.
    Events that are `resend` already are meant only if the filter has state=resend.
    """
    from semel.operate import record_decision

    who = by or user_at_host()
    if where is not None:
        _resolve_many(words, where, who, reason, yes=yes, ledger=ledger, as_json=as_json)
        return
    if len(words) != 2 or yes:
        raise ConfigurationError(
            "pass an event and a decision, as in `semel resolve @3f9a2c delivered --reason ...`, "
            "or --where FILTER and a decision; --yes belongs to --where"
        )
    with opened(ledger) as looked_at:
        decided = record_decision(looked_at, words[0], words[1], by=who, reason=reason)
    if as_json:
        show_json(decided.to_json())
    else:
        print(f"{decided.subject}: {decided.state.value} (by {plain(who)})")
        print(plain(decided.next))


def _resolve_many(
    words: list[str],
    where: str,
    who: str,
    reason: str,
    *,
    yes: bool,
    ledger: str | None,
    as_json: bool,
) -> None:
    from semel.operate import refuse_damaged, resolve_many

    if len(words) != 1:
        raise ConfigurationError(
            f"with --where pass one decision (delivered, resend or discard), got {len(words)} "
            "words; quote the filter"
        )
    progress = ProgressLine("events read")
    with opened(ledger) as looked_at:
        found = resolve_many(
            looked_at,
            where,
            words[0],
            by=who,
            reason=reason,
            dry_run=not yes,
            progress=lambda read, done: progress.show(read, f"{done} resolved" if yes else ""),
        )
    if as_json:
        show_json(found.to_json())
    else:
        _show_many(found)
    refuse_damaged(found.damaged)


def _show_many(found: BulkDecision) -> None:
    if found.chosen.total:
        show_table(
            ("pipeline", "sink", "state", "why", "events"),
            [
                tuple(each[name] for name in ("pipeline", "sink", "state", "why", "count"))
                for each in found.chosen.to_json()[:GROUPS_SHOWN]
            ],
            right=("events",),
        )
        print("for example " + ", ".join(map(plain, found.chosen.examples)))
    left = ", ".join(f"{count} {state.value}" for state, count in sorted(found.left.items()))
    if left:
        print(f"not decidable as they are: {left}")
    if not found.done:
        print(
            f"{found.chosen.total} of {found.read} parked events would be {found.decision.value} "
            f"(by {plain(found.by)}). Nothing was changed: run it with --yes"
        )
        return
    print(f"{found.resolved} events: {found.decision.value} (by {plain(found.by)})")
    if found.changed:
        print(
            f"{found.changed} were changed by the query or another person meanwhile, and left as "
            f"they are, for example {', '.join(map(plain, found.changed_examples))}"
        )
    if found.resolved:
        names = ", ".join(map(plain, sorted(found.pipelines)))
        print(f"what waits to be sent is sent before the next minibatches of {names}")
