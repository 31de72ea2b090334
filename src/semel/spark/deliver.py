"""`semel.deliver` and `semel.deliver_batch`: what a user calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from semel.delivery import Agreement
from semel.errors import ConfigurationError
from semel.events import Position
from semel.ledger.pruning import REMEMBER_S
from semel.sinks import Sink
from semel.sinks import sink as make_sink
from semel.sinks.settings import checked_words
from semel.spark import sources
from semel.spark.batch import Delivered, run_batch
from semel.spark.identities import Named, choose, forms, require_order
from semel.spark.refusals import refuse_columns
from semel.spark.writer import make_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from semel.events import Identity

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
    """
    _require_frame(df, name)
    if not df.isStreaming:
        raise ConfigurationError(
            f"pipeline {name!r}: the frame is not streaming. For a batch job say "
            'semel.deliver_batch(df, ..., batch="2026-11-14")'
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
    )
    source = None
    if isinstance(agreement.identity, Position):
        source = sources.find(df)
        agreement = replace(agreement, unknown_source=sources.unknown(df, source))
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
) -> Delivered:
    """Deliver the rows of a frame, each once, under the name of a batch; say what was done.

    Run again after a crash it goes on at the exact record; run again after its end it delivers
    nothing, and refuses other content. Words as for `deliver`; the ledger is `$SEMEL_LEDGER` where
    it is not named.
    """
    _require_frame(df, name)
    if df.isStreaming:
        raise ConfigurationError(
            f"pipeline {name!r}: the frame is streaming: say semel.deliver(df, ...).start()"
        )
    if not batch or not isinstance(batch, str):
        raise ConfigurationError(
            f'pipeline {name!r}: the batch needs a text as its name: batch="2026-11-14", and not '
            f"{batch!r}"
        )
    named = Named(identity, entity, event, order_by)
    words = {"partitions": partitions, "order": order}
    agreement = _agree(df, to, f"{name}@{batch}", named, batch, **words)
    return run_batch(df, agreement, ledger)


def _require_frame(df: object, name: object) -> None:
    """Refuse what is no frame of Spark's, and a name that is no text."""
    if not isinstance(name, str):
        raise ConfigurationError(f"name={name!r} is no name of a pipeline: give a text")
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
) -> Agreement:
    """Put together what was asked for. Raises `ConfigurationError`."""
    if "@" in name.removesuffix(f"@{batch}") + batch:
        raise ConfigurationError(
            f"pipeline {name!r}: an @ stands between the name of a batch job and its batch; leave "
            "it out of both"
        )
    sinks = tuple(_sink(each, name) for each in ([to] if _is_one(to) else to))  # type: ignore[union-attr]
    try:
        chosen = choose(df, named)
        if words.get("order", True):
            require_order(df, chosen)
        refuse_columns(df, sinks)
    except ConfigurationError as error:
        raise ConfigurationError(f"pipeline {name!r}: {error}") from None
    return Agreement(name, sinks, chosen, forms=forms(df, chosen), **words)


def _is_one(to: object) -> bool:
    return isinstance(to, Sink) or callable(to) or not isinstance(to, Iterable)


def _sink(destination: object, pipeline: str) -> Sink:
    """A sink as it is; a plain function as the most careful sink there is."""
    if isinstance(destination, Sink):
        return destination
    if callable(destination) and not isinstance(destination, type):
        return make_sink(destination)
    raise ConfigurationError(
        f"pipeline {pipeline!r}: to={destination!r} is no sink: give one of semel.sinks, or a "
        "function made one by @semel.sink"
    )
