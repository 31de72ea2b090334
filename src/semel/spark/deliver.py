"""The public functions `semel.deliver` and `semel.deliver_batch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from semel.delivery import PipelineSpec, limits_of, refuse_while_looking
from semel.errors import ConfigurationError
from semel.events import Named
from semel.ledger import REMEMBER_S
from semel.monitoring import Monitoring
from semel.sinks import AuditLog, Sink, checked_words
from semel.sinks import sink as make_sink
from semel.spark.batch_job import Delivered, run_batch
from semel.spark.checks import (
    refuse_columns,
    refuse_moved,
    refuse_rooted,
    refuse_stopped,
    require_types,
)
from semel.spark.frames import kafka_topics
from semel.spark.frames.choose_identity import choose, forms, refuse_routing, require_order
from semel.spark.frames.plan import streams
from semel.spark.versions import refuse_server, refuse_version
from semel.spark.writer import make_writer
from semel.streams import APPLICATIONS, Application

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from semel.events import Identity, Routing
    from semel.monitoring import Alert

    Destination = Sink | Callable[..., object]


@checked_words
def deliver(  # noqa: PLR0913 - the public parameters; all but two have a default
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
    drop_repeats: bool = False,
    partition_by: Routing | None = None,
    application: str | Application | None = None,
    latency_s: float | None = None,
    metrics: str | int | None = None,
    otel: bool = False,
    alert: str | Callable[[Alert], object] | None = None,
    audit: str | PathLike[str] | None = None,
    standby: bool = False,
) -> DataStreamWriter:
    """Deliver each row of a streaming DataFrame exactly once; return Spark's own writer.

    Runs on the driver; no row is read before `.start()`. Raises `ConfigurationError` for a pipeline
    that cannot keep the promise.

    Args:
        df: the streaming DataFrame; each row is an event.
        to: one sink or several; all are fed in the same pass, each with its own records in the
            ledger.
        name: the name of the pipeline in the ledger; another query needs another name.
        entity: the column (or dotted path) that groups events; the events of an entity stay in
            order.
        event: the column or columns that identify an event of its entity; an id is never reused.
        identity: "position", "given" or "counter", if the other parameters do not imply it.
        ledger: where deliveries are recorded: `sqlite:///path` or `postgresql://...`; by default
            `$SEMEL_LEDGER`, otherwise a file beside the checkpoint.
        partitions: the number of partitions that entities are spread over; fixed at the first
            start.
        order: whether the events of an entity wait for each other.
        order_by: the columns that order the events of an entity, if the ids are not rising numbers.
        increasing: the ids of an entity only rise (checked); they are then never forgotten.
        remember_s: how long other ids are remembered, in case the checkpoint is lost.
        accept_gap: continue even if the input does not start where the ledger ends.
        drop_repeats: drop events whose ids came in an earlier minibatch, as far as the ledger
            remembers them. A late event with a lower id is dropped too if ids are `increasing`.
        partition_by: how entities are spread over partitions: `semel.by_range([1000, 2000])` or
            `semel.by_directory(table_or_function)`; by default by hash.
        application: "alerts", "payments", "dashboard", "etl" or "archive": how soon events must be
            delivered. Micro-batches then begin as rarely as that allows.
        latency_s: the same in seconds, if it is not the default of the application.
        metrics: where Prometheus reads metrics: a port of 127.0.0.1, or "host:port"; pipelines of
            one process may share it.
        otel: whether each minibatch is a trace, and the metrics are there, for the SDK of
            OpenTelemetry that the application has set up.
        alert: a URL that gets a POST, or a function that is called with a
            `semel.monitoring.Alert`, when events were parked.
        audit: a folder, or its URL, for Parquet files by day with the outcome of every event, which
            outlive what the ledger keeps.
        standby: if the pipeline is running, `.start()` waits and takes over when that run has ended
            or its heartbeat stops; without it `.start()` raises `ConfigurationError`.
    """
    _require_frame(df, name)
    refuse_version(name)
    if not df.isStreaming:
        raise ConfigurationError(
            f"pipeline {name!r}: the DataFrame is not streaming. For a batch job call "
            'semel.deliver_batch(df, ..., batch="2026-11-14")'
        )
    words: dict[str, Any] = {
        "partitions": partitions,
        "order": order,
        "accept_gap": accept_gap,
        "drop_repeats": drop_repeats,
        "remember_s": remember_s,
    }
    columns = {"entity": entity, "event": event, "order_by": order_by}
    require_types(
        name, {**columns, "ledger": ledger, "increasing": increasing, "otel": otel, **words}
    )
    require_types(name, {"standby": standby})
    named = Named(identity, entity, event, order_by, increasing)
    spec = _agree(df, to, name, named, partition_by=partition_by, **words)
    if application is not None or latency_s is not None:
        limits = _limits(name, df)
        spec = replace(spec, application=_application(name, application, latency_s), limits=limits)
    if audit is not None:
        spec = replace(spec, audit=_audit_log(name, audit))
    made: Any = _made(df, spec, ledger, Monitoring(metrics, otel, alert))
    writer: DataStreamWriter = made.stands_by() if standby else made
    return writer


def _audit_log(pipeline: str, url: str | PathLike[str]) -> AuditLog:
    """Return the audit log in a folder. Raises `ConfigurationError`."""
    try:
        return AuditLog(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"pipeline {pipeline!r}: {error}") from None


def _made(
    df: DataFrame, spec: PipelineSpec, ledger: str | None, monitoring: Monitoring
) -> DataStreamWriter:
    """Return the writer, which knows the Kafka source if the identity is by position."""
    monitoring.check(spec.name)
    source = None
    if spec.identity.uses_source_partitions:
        source = kafka_topics.find(df)
        spec = replace(spec, unknown_source=kafka_topics.unknown(df, source))
    return make_writer(df, spec, ledger, source, monitoring)


def _limits(pipeline: str, df: DataFrame) -> dict[str, str]:
    """Return the limits of the sources. Raises `ConfigurationError` for a source that has a marker
    clock of its own: the pause of one would be a cost to the other.
    """
    limits: dict[str, str] = {}
    for source, options in streams(df):
        limits |= limits_of(options)
        twice = sorted({"application", "latency"} & {option.lower() for option in options})
        if twice and source.startswith("semel."):
            raise ConfigurationError(
                f"pipeline {pipeline!r}: the source {source} has the option {twice[0]!r}, and "
                "application= was passed as well: one of them says when a micro-batch ends. Remove "
                "application= and latency_s=, or the options of the source"
            )
    return limits


def _application(
    pipeline: str, application: str | Application | None, latency_s: float | None
) -> Application:
    """Return the application with its latency. Raises `ConfigurationError`."""
    try:
        if application is None:
            raise ConfigurationError(
                f"latency_s={latency_s!r} needs a type of application: pass application=, one of "
                f"{', '.join(APPLICATIONS)}"
            )
        if isinstance(application, Application):
            return application if latency_s is None else replace(application, latency_s=latency_s)
        return Application.of(application, latency_s)
    except ConfigurationError as error:
        raise ConfigurationError(f"pipeline {pipeline!r}: {error}") from None


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
    """Deliver each row of a DataFrame exactly once, as a named batch; return the counts.

    Run again after a crash, it continues at the exact record. Run again after it finished, it
    delivers nothing and refuses different content. Parameters as for `deliver`; the ledger defaults
    to `$SEMEL_LEDGER`. Raises `EventsParked` if events of the batch are parked, after everything
    else is delivered; with `fail_on_parked=False` it only logs a warning.
    """
    refuse_while_looking(name, "semel.deliver_batch(...)")
    _require_frame(df, name)
    refuse_version(name)
    if df.isStreaming:
        raise ConfigurationError(
            f"pipeline {name!r}: the DataFrame is streaming: call semel.deliver(df, ...).start()"
        )
    if not batch or not isinstance(batch, str):
        raise ConfigurationError(
            f'pipeline {name!r}: batch must be a non-empty string such as batch="2026-11-14", got '
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
    spec = _agree(df, to, f"{name}@{batch}", named, batch, **words)
    return run_batch(df, spec, ledger, fail_on_parked=fail_on_parked)


def _require_frame(df: object, name: object) -> None:
    """Refuse a `df` that is not a Spark DataFrame, and a name that is not a string."""
    if not isinstance(name, str):
        raise ConfigurationError(f"name must be a non-empty string, got {name!r}")
    if hasattr(df, "sparkSession"):
        refuse_stopped(df.sparkSession, name)
    if not hasattr(df, "isStreaming"):
        raise ConfigurationError(
            f"pipeline {name!r}: df must be a Spark DataFrame, got {type(df).__name__}"
        )


def _agree(
    df: DataFrame,
    to: Destination | Sequence[Destination],
    name: str,
    named: Named,
    batch: str = "",
    **words: Any,
) -> PipelineSpec:
    """Check the parameters and combine them. Raises `ConfigurationError`."""
    if "@" in name.removesuffix(f"@{batch}") + batch:
        raise ConfigurationError(
            f"pipeline {name!r}: semel puts an @ between the name of a batch job and its batch; "
            "remove the @ from both"
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
    if chosen.uses_source_partitions:
        refuse_moved(df, name)
    return PipelineSpec(name, sinks, chosen, forms=forms(df, chosen), **words)


def _sinks(to: object, pipeline: str) -> tuple[Sink, ...]:
    """Return the sinks of `to`, one or several. Raises `ConfigurationError`."""
    alone = isinstance(to, Sink | str | bytes | Mapping) or callable(to)
    if isinstance(to, Iterable) and not alone:
        return tuple(_sink(each, pipeline, f"to[{at}]") for at, each in enumerate(to))
    return (_sink(to, pipeline, "to"),)


def _sink(destination: object, pipeline: str, word: str) -> Sink:
    """Return a sink unchanged, and a plain function as an OPAQUE sink."""
    if isinstance(destination, Sink):
        return destination
    if callable(destination) and not isinstance(destination, type):
        return make_sink(destination)
    got = type(destination).__name__
    instead = (
        "Pass one of semel.sinks, a sink of your own (a subclass of semel.sinks.Sink), a function "
        "with @semel.sink above it, or a list of them"
    )
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
