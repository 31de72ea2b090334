"""The command `semel ingest`: takes events over HTTP into an inbox."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from semel.cli.options import (
    HostOption,
    JsonOption,
    LedgerOption,
    PortOption,
    TokenOption,
    require_url,
)
from semel.cli.output import plain, show_json
from semel.errors import MissingExtra

EPILOG = (
    "Example: semel ingest orders --ledger sqlite:///shop.db; then: curl -i "
    "http://127.0.0.1:8099/v1/events -H 'Content-Type: application/json' -H 'Semel-Entity: 42' "
    "-d '{\"amount\": 5}'"
)

_PORT = 8099
_EVENT_BYTES = 1024 * 1024

StreamArgument = Annotated[str, typer.Argument(help="The name of the stream.", show_default=False)]
EntityOption = Annotated[
    str,
    typer.Option(
        metavar="PLACE",
        help="Where the entity of an event is: auto, header (Semel-Entity), subject, or a JSON "
        "pointer such as /customer/id. Each but auto is required.",
    ),
]
BytesOption = Annotated[
    int, typer.Option(help="The most bytes of one event; a request may have 8 times as many.")
]
PartitionsOption = Annotated[
    int | None, typer.Option(help="How many partitions a new stream has.", show_default="4")
]
TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", help="The time in which a request has to arrive.")
]
PipelineOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A pipeline that reads the stream, for outcomes; may be repeated. Without it, those "
        "whose identity shows it.",
        show_default=False,
    ),
]


def ingest(
    stream: StreamArgument,
    *,
    ledger: LedgerOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = _PORT,
    token_file: TokenOption = None,
    entity: EntityOption = "auto",
    max_bytes: BytesOption = _EVENT_BYTES,
    partitions: PartitionsOption = None,
    timeout: TimeoutOption = 30.0,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take events over HTTP, number them and store each once in the inbox of STREAM.

    It runs until SIGTERM or Ctrl-C; then what was accepted is committed and answered, and the exit
    status is 0. Any number of these processes may share one stream.
    """
    url = require_url(ledger)
    try:
        from semel.ingress import EntityPlace, IngressSettings, serve
    except ImportError as missing:
        raise MissingExtra(
            f"{missing.name} is not installed: pip install 'semel[ingress]'"
        ) from missing
    settings = IngressSettings(
        url,
        stream,
        host,
        port,
        token_file,
        EntityPlace(entity),
        max_bytes,
        partitions,
        timeout,
        tuple(pipeline or ()),
    )
    serve(settings, lambda at: _started(stream, at, as_json=as_json))


def _started(stream: str, url: str, *, as_json: bool) -> None:
    """Print where it listens: for a person on standard error, as JSON on standard output."""
    if as_json:
        show_json({"stream": stream, "url": f"{url}/v1/events"})
        sys.stdout.flush()
    print(f"semel ingest: stream {plain(stream)} at {url}/v1/events", file=sys.stderr, flush=True)
