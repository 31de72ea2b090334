"""The commands `semel inbox put`, `ls`, `tail`, `repartition`, `prune` and `forget`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import JsonOption, LedgerOption, opened, require_url
from semel.cli.output import ago, plain, shorten, show_json, show_table

if TYPE_CHECKING:
    from semel.operate import EventFields, InboxStatus

PUT_EPILOG = (
    "Example: semel inbox put orders --entity-field customer --id-field order < orders.jsonl; or "
    "semel inbox put orders '{\"amount\": 7}' --entity c42 --ledger sqlite:///orders.db"
)
LS_EPILOG = "Example: semel inbox ls orders --ledger sqlite:///orders.db"
TAIL_EPILOG = "Example: semel inbox tail orders --follow --ledger sqlite:///orders.db"
REPARTITION_EPILOG = "Example: semel inbox repartition orders 8 --ledger sqlite:///orders.db"
PRUNE_EPILOG = "Example: semel inbox prune orders --keep-s 86400 --ledger sqlite:///orders.db"
FORGET_EPILOG = "Example: semel inbox forget orders charges --ledger sqlite:///orders.db"

app = typer.Typer(
    help="Events on the way in: put some, list streams, look at the newest.",
    no_args_is_help=True,
    epilog="Example: semel inbox ls --ledger sqlite:///shop.db",
)

StreamArgument = Annotated[str, typer.Argument(help="The stream's name.", show_default=False)]


@app.command("put", epilog=PUT_EPILOG)
def put(
    stream: StreamArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE]...",
            help="The data of an event each; without one, every line of standard input.",
            show_default=False,
        ),
    ] = None,
    *,
    entity: Annotated[
        str | None, typer.Option(help="The entity of all events.", show_default=False)
    ] = None,
    entity_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The JSON field with the entity.", show_default=False),
    ] = None,
    id_: Annotated[
        str | None,
        typer.Option("--id", help="The id of the event, if there is one.", show_default=False),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The JSON field with the id.", show_default=False),
    ] = None,
    source: Annotated[str, typer.Option(help="Who produced the events.")] = "",
    type_: Annotated[str, typer.Option("--type", help="The type of the events.")] = "",
    content_type: Annotated[str, typer.Option(help="What the data is.")] = "application/json",
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="How many, if the stream is new: 4.", show_default=False),
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append events to a stream, which is created if it is missing, as is the ledger.

    Events with an id may be put again: what is stored already is counted as a repeat.
    """
    from semel.errors import ConfigurationError
    from semel.operate import EventFields, put_events
    from semel.streams import Inbox

    if id_ is not None and (id_field is not None or len(values or ()) != 1):
        raise ConfigurationError("--id is the id of one event: pass one VALUE, or --id-field")
    if entity is not None and entity_field is not None:
        raise ConfigurationError("pass --entity or --entity-field, not both")
    fields = EventFields(entity, entity_field, id_, id_field, source, type_, content_type)
    with Inbox(require_url(ledger), stream, partitions=partitions) as inbox:
        done = put_events(inbox, _events(fields, values))
    if as_json:
        show_json(done.to_json())
    else:
        repeats = f", {done.repeats} of them repeats" if done.repeats else ""
        print(f"{plain(stream)}: {done.events} events stored{repeats}")


def _events(fields: EventFields, values: list[str] | None) -> Iterator[Any]:
    if values:
        for number, value in enumerate(values, 1):
            yield fields.event(value, f"value {number}")
        return
    for number, line in enumerate(sys.stdin, 1):
        if line.strip():
            yield fields.event(line.strip("\r\n"), f"line {number}")


@app.command("ls", epilog=LS_EPILOG)
def list_streams(
    stream: Annotated[
        str | None, typer.Argument(help="Only this stream.", show_default=False)
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List streams with their partitions and readers: what is kept, how old it is, and how far
    each reader is.
    """
    from semel.operate import list_inboxes

    with opened(ledger) as looked_at:
        found = list_inboxes(looked_at, stream)
    if as_json:
        shown = [each.to_json() for each in found]
        show_json(shown if stream is None else shown[0])
    elif found:
        _show_streams(found)
    else:
        print("no streams")


def _show_streams(found: list[InboxStatus]) -> None:
    from semel.operate import age_s

    show_table(
        ("stream", "partition", "begin", "end", "kept", "newest", "parents", "state"),
        [
            (
                status.stream,
                each.partition,
                each.begin,
                each.end,
                each.end - each.begin,
                ago(age_s(each.time_us / 1e6)) if each.time_us else None,
                ", ".join(map(str, each.parents)) or None,
                "final" if each.final else "open",
            )
            for status in found
            for each in status.partitions
        ],
        right=("partition", "begin", "end", "kept"),
    )
    readers = [
        (status.stream, each.reader, status.behind(each), ago(age_s(each.time_us / 1e6)))
        for status in found
        for each in status.readers
    ]
    if readers:
        print()
        show_table(("stream", "reader", "behind", "reported"), readers, right=("behind",))


@app.command("tail", epilog=TAIL_EPILOG)
def tail(
    stream: StreamArgument,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many events.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new events until Ctrl-C.")
    ] = False,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the newest events of a stream. With --follow, --json prints one object on each line."""
    from semel.operate import event_to_json, follow_events, newest_events
    from semel.streams import Inbox

    with opened(ledger) as looked_at:
        inbox = Inbox(looked_at.store, stream)
        found, ends = newest_events(inbox, limit)
        if as_json and not follow:
            show_json([event_to_json(each) for each in found])
            return
        for each in found:
            _show_event(each, as_json=as_json)
        if follow:
            for each in follow_events(inbox, ends):
                _show_event(each, as_json=as_json)


def _show_event(event: dict[str, Any], *, as_json: bool) -> None:
    from semel.events.encoding import json_text
    from semel.operate import event_to_json

    shown = event_to_json(event)
    if as_json:
        print(json_text(shown), flush=True)
        return
    value = shown.get("value", "(not text)")
    at = f"{event['partition']}/{event['offset']}"
    print(
        f"{shown['timestamp'][:19]}Z  {at:<10} {plain(shorten(event['entity']))}#{event['event']}"
        f"  {plain(value)}",
        flush=True,
    )


@app.command("repartition", epilog=REPARTITION_EPILOG)
def repartition(
    stream: StreamArgument,
    partitions: Annotated[
        int, typer.Argument(min=1, help="The new number of partitions.", show_default=False)
    ],
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the entities of a stream to new partitions. Producers and readers may run meanwhile."""
    from semel.operate import list_inboxes
    from semel.streams import Inbox

    with opened(ledger) as looked_at:
        Inbox(looked_at.store, stream).repartition(partitions)
        [status] = list_inboxes(looked_at, stream)
    if as_json:
        show_json(status.to_json())
    else:
        _show_streams([status])


@app.command("prune", epilog=PRUNE_EPILOG)
def prune(
    stream: StreamArgument,
    keep_s: Annotated[float, typer.Option(min=0, help="Keep events that are younger.")] = 7
    * 24
    * 3600,
    remember_s: Annotated[
        float, typer.Option(min=0, help="Remember the ids of events that are younger.")
    ] = 7 * 24 * 3600,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove events that are old enough and that every reader has completed, and old ids."""
    from semel.streams import Inbox

    with opened(ledger) as looked_at:
        pruned = Inbox(looked_at.store, stream, remember_s=remember_s).prune(keep_s=keep_s)
    if as_json:
        show_json({"stream": stream, "events": pruned.events, "ids": pruned.ids})
    else:
        print(f"{plain(stream)}: {pruned.events} events and {pruned.ids} ids removed")


@app.command("forget", epilog=FORGET_EPILOG)
def forget(
    stream: StreamArgument,
    reader: Annotated[str, typer.Argument(help="The reader's name.", show_default=False)],
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a reader that will not come back: events are not kept for it any more."""
    from semel.errors import ConfigurationError
    from semel.operate import list_inboxes
    from semel.streams import Inbox

    with opened(ledger) as looked_at:
        list_inboxes(looked_at, stream)
        if not Inbox(looked_at.store, stream).forget_reader(reader):
            raise ConfigurationError(f"the inbox {stream!r} has no reader {reader!r}")
    if as_json:
        show_json({"stream": stream, "forgotten": reader})
    else:
        print(f"{plain(stream)}: no event is kept for {plain(reader)} any more")
