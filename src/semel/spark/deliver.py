"""`semel.deliver` and `semel.deliver_batch`: what a user calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from semel.delivery import PipelineSpec
from semel.delivery.start_guard import refuse_while_looking
from semel.errors import ConfigurationError
from semel.events import Position
from semel.ledger import REMEMBER_S
from semel.sinks import Sink
from semel.sinks import sink as make_sink
from semel.sinks.validation import checked_words
from semel.spark import kafka_topics
from semel.spark.batch_job import Delivered, run_batch
from semel.spark.checks import (
    refuse_columns,
    refuse_moved,
    refuse_rooted,
    refuse_stopped,
    require_types,
)
from semel.spark.choose_identity import Named, choose, forms, refuse_routing, require_order
from semel.spark.versions import refuse_server, refuse_version
from semel.spark.writer import make_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from semel.events import Identity
    from semel.events.routing import Routing

    Destination = Sink | Callable[..., object]


@checked_words
def deliver(  # noqa: PLR0913 - each is a word of the agreement, and all but two have a default
    df: DataFrame,
    *,
    to: Destination | Sequence[Destination],
    name: str,
    entity: str | None = None,
    event: str | Sequence[str] | None = None,
    identity: str | Identity | None = None,
    ledger: str | None = None,
    partitions: int | None = None,
    order: bool = True,
    order_by: str | Sequence[str] | None = None,
    increasing: bool = False,
    remember_s: float = REMEMBER_S,
    accept_gap: bool = False,
    partition_by: Routing | None = None,
) -> DataStreamWriter:
    """Deliver the rows of a streaming frame, each once; give Spark's own writer to start it with.

    Runs on the driver; nothing moves before `.start()`. Raises `ConfigurationError` for what cannot
    keep the promise.

    Args:
        df: the streaming frame, each row of it an event.
        to: one sink or several; each is fed in the same pass and has its own place in the ledger.
        name: what the ledger calls the pipeline; another query needs another name.
        entity: the column (or dotted path) whose events belong together and stay in order.
        event: the column or columns that name an event of its entity, for ever.
        identity: "position", "given" or "counter", where it does not follow from the other words.
        ledger: where it is recorded: `sqlite:///path` or `postgresql://...`; by default
            `$SEMEL_LEDGER`, else a file beside the checkpoint.
        partitions: over how many partitions the entities are spread; fixed with the first start.
        order: whether an entity's events wait for each other.
        order_by: what orders an entity's events, where their ids are not numbers that rise.
        increasing: the ids of an entity only rise (checked); then they are remembered for ever.
        remember_s: how long other ids are remembered, in case the checkpoint is lost.
        accept_gap: go on although the input does not continue where the ledger stands.
        partition_by: how entities are spread over partitions: `semel.by_range([1000, 2000])` or
            `semel.by_directory(table_or_function)`; by default by their hash.
    """
    _require_frame(df, name)
    refuse_version(name)
    if not df.isStreaming:
        raise ConfigurationError(
            f"pipeline {name!r}: the frame is not streaming. For a batch job say "
            'semel.deliver_batch(df, ..., batch="2026-11-14")'
        )
    require_types(
        name,
        {
            "entity": entity,
            "event": event,
            "order_by": order_by,
            "ledger": ledger,
            "partitions": partitions,
            "order": order,
            "increasing": increasing,
            "accept_gap": accept_gap,
            "remember_s": remember_s,
        },
    )
    named = Named(identity, entity, event, order_by, increasing)
    agreement = _agree(
        df,
        to,
        name,
        named,
        partitions=partitions,
        order=order,
        accept_gap=accept_gap,
        remember_s=remember_s,
        partition_by=partition_by,
    )
    source = None
    if isinstance(agreement.identity, Position):
        source = kafka_topics.find(df)
        agreement = replace(agreement, unknown_source=kafka_topics.unknown(df, source))
    return make_writer(df, agreement, ledger, source)


@checked_words
def deliver_batch(  # noqa: PLR0913 - as above
    df: DataFrame,
    *,
    to: Destination | Sequence[Destination],
    name: str,
    batch: str,
    entity: str | None = None,
    event: str | Sequence[str] | None = None,
    identity: str | Identity | None = None,
    ledger: str | None = None,
    partitions: int | None = None,
    order: bool = True,
    order_by: str | Sequence[str] | None = None,
    partition_by: Routing | None = None,
    fail_on_parked: bool = True,
) -> Delivered:
    """Deliver the rows of a frame, each once, under the name of a batch; say what was done.

    Run again after a crash it goes on at the exact record; run again after its end it delivers
    nothing, and refuses other content. Words as for `deliver`; the ledger is `$SEMEL_LEDGER` where
    it is not named. Raises `EventsParked` once everything else is delivered, where events of it are
    parked; with `fail_on_parked=False` it only warns.
    """
    refuse_while_looking(name, "semel.deliver_batch(...)")
    _require_frame(df, name)
    refuse_version(name)
    if df.isStreaming:
        raise ConfigurationError(
            f"pipeline {name!r}: the frame is streaming: say semel.deliver(df, ...).start()"
        )
    if not batch or not isinstance(batch, str):
        raise ConfigurationError(
            f'pipeline {name!r}: the batch needs a text as its name: batch="2026-11-14", and not '
            f"{batch!r}"
        )
    require_types(
        name,
        {
            "entity": entity,
            "event": event,
            "order_by": order_by,
            "ledger": ledger,
            "partitions": partitions,
            "order": order,
            "fail_on_parked": fail_on_parked,
        },
    )
    named = Named(identity, entity, event, order_by)
    words = {"partitions": partitions, "order": order, "partition_by": partition_by}
    agreement = _agree(df, to, f"{name}@{batch}", named, batch, **words)
    return run_batch(df, agreement, ledger, fail_on_parked=fail_on_parked)


def _require_frame(df: object, name: object) -> None:
    """Refuse what is no frame of Spark's, and a name that is no text."""
    if not isinstance(name, str):
        raise ConfigurationError(f"name={name!r} is no name of a pipeline: give a text")
    if hasattr(df, "sparkSession"):
        refuse_stopped(df.sparkSession, name)
    if not hasattr(df, "isStreaming"):
        raise ConfigurationError(
            f"pipeline {name!r}: what is delivered is a DataFrame of Spark's, and not "
            f"{type(df).__name__}"
        )


def _agree(
    df: DataFrame,
    to: Destination | Sequence[Destination],
    name: str,
    named: Named,
    batch: str = "",
    **words: Any,
) -> PipelineSpec:
    """Put together what was asked for. Raises `ConfigurationError`."""
    if "@" in name.removesuffix(f"@{batch}") + batch:
        raise ConfigurationError(
            f"pipeline {name!r}: an @ stands between the name of a batch job and its batch; leave "
            "it out of both"
        )
    sinks = _sinks(to, name)
    refuse_server(df, name)
    try:
        chosen = choose(df, named)
        if words.get("order", True):
            require_order(df, chosen)
        refuse_columns(df, sinks)
        refuse_rooted(sinks)
        refuse_routing(df, chosen, words.get("partition_by"))
    except ConfigurationError as error:
        raise ConfigurationError(f"pipeline {name!r}: {error}") from None
    if isinstance(chosen, Position):
        refuse_moved(df, name)
    return PipelineSpec(name, sinks, chosen, forms=forms(df, chosen), **words)


def _sinks(to: object, pipeline: str) -> tuple[Sink, ...]:
    """The sinks that were named: one, or several. Raises `ConfigurationError`."""
    alone = isinstance(to, Sink | str | bytes | Mapping) or callable(to)
    if isinstance(to, Iterable) and not alone:
        return tuple(_sink(each, pipeline, f"to[{at}]") for at, each in enumerate(to))
    return (_sink(to, pipeline, "to"),)


def _sink(destination: object, pipeline: str, word: str) -> Sink:
    """A sink as it is; a plain function as the most careful sink there is."""
    if isinstance(destination, Sink):
        return destination
    if callable(destination) and not isinstance(destination, type):
        return make_sink(destination)
    got = type(destination).__name__
    instead = "Pass one of semel.sinks, or a function with @semel.sink above it, or a list of them"
    if isinstance(destination, str):
        got = "a string" if "://" in destination else repr(destination)  # may hold a password
        instead = "Pass the sink itself, without quotes: to=charge"
    elif isinstance(destination, type):
        got = f"the class {destination.__name__}"
        if issubclass(destination, Sink):
            instead = f"Pass a sink of that class: {destination.__name__}(name=...)"
    raise ConfigurationError(
        f"pipeline {pipeline!r}: {word} must be a sink or a list of sinks, got {got}. {instead}"
    )
