"""The stage after files: each manifest is handed on, once its minibatch is complete.

Always true:
- it is handed on only when it is in place;
- a `Loader` keeps the manifest's key in the transaction of its load, so it can be asked again;
- any other second stage is a sink whose events are manifests: its intent is in the ledger before
  the request, its complete after it, and between them its capability or its policy decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import pyarrow as pa

from semel.errors import ConfigurationError, DeliveryError, NotDelivered, OutcomeUnknown, plain_text
from semel.events.ids import Minibatch
from semel.protocol import Capability
from semel.sinks.function import Function
from semel.sinks.sink import DELIVERED, Receipt, Session, Sink, Target
from semel.sinks.unrun import left_to_run, runs_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.events import Chunk, Event
    from semel.sinks.files.manifests import Manifest

SCHEMA = pa.schema(
    [
        ("manifest", pa.string()),
        ("pipeline", pa.string()),
        ("sink", pa.string()),
        ("minibatch", pa.string()),
        ("location", pa.string()),
        ("format", pa.string()),
        ("rows", pa.int64()),
        ("files", pa.list_(pa.string())),
    ]
)
"""The columns of a manifest as an event of the second stage."""


@runtime_checkable
class Loader(Protocol):
    """Loads manifests. Runs on the driver, after the ledger has the minibatch complete."""

    def known(self, manifest: Manifest) -> bool:
        """Say whether this manifest was loaded: by its `key`."""

    def load(self, manifest: Manifest) -> None:
        """Load it, with its key in the same transaction: where the key stands already, do nothing.

        Raises `NotDelivered` or `OutcomeUnknown` where it may be tried again, `Rejected` where
        that is no use.
        """


@runtime_checkable
class Selective(Protocol):
    """A loader that takes certain columns, and can say on the driver that one is not there."""

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for a column that the files will not have."""


def as_event(manifest: Manifest) -> pa.RecordBatch:
    """Give a manifest as the one row that a second stage is sent."""
    row = {
        "manifest": manifest.key,
        "pipeline": manifest.pipeline,
        "sink": manifest.sink,
        "minibatch": str(manifest.minibatch),
        "location": manifest.location,
        "format": manifest.format,
        "rows": manifest.rows,
        "files": manifest.urls,
    }
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def minibatch_in(event: Event) -> Minibatch:
    """Read which minibatch the manifest of an event is of."""
    generation, _, batch = str(event.value["minibatch"]).partition(".")
    return Minibatch(int(generation), int(batch))


@dataclass(frozen=True, kw_only=True)
class ManifestFunction(Sink):
    """A function as the second stage: it is called with each `Manifest` (OPAQUE).

    Attributes:
        standing: gives the manifest of a minibatch of a pipeline, as it stands.
    """

    function: Callable[[Manifest], object]
    standing: Callable[[str, Minibatch], Manifest]

    @property
    def capability(self) -> Capability:
        """OPAQUE: a function says nothing of what it does."""
        return Capability.OPAQUE

    def open(self, target: Target) -> Session:
        """Nothing to connect to: the function brings its own connections."""
        return _Calls(self, target.pipeline)


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls the function with the manifest of each event."""

    sink: ManifestFunction
    pipeline: str

    def deliver(self, chunk: Chunk) -> Receipt:
        for event in chunk.events():
            try:
                manifest = self.sink.standing(self.pipeline, minibatch_in(event))
            except Exception as error:
                raise NotDelivered(f"the manifest cannot be read ({plain_text(error)})") from error
            try:
                left = left_to_run(self.sink.function(manifest))
            except DeliveryError:
                raise
            except Exception as error:
                text = f"{type(error).__name__}: {plain_text(error)}"
                raise OutcomeUnknown(text) from error
            if left is not None:
                raise OutcomeUnknown(f"the function that loads {manifest.key!r} gave {left}")
        return DELIVERED

    def close(self) -> None:
        return


def refuse_stage(name: str, then: object) -> None:
    """Raise `ConfigurationError` for what cannot be a second stage of the sink `name`."""
    sequenced = isinstance(then, Sink) and then.capability is Capability.SEQUENCED
    if isinstance(then, Sink) and (sequenced or then.whole or then.name == name):
        raise ConfigurationError(
            f"sink {name!r}: then={then.name!r} cannot be the stage after files: a second stage "
            "has a name of its own and takes manifests one at a time (an Http or Postgres sink, a "
            "function), not a sequenced topic or files"
        )
    if isinstance(then, Sink):
        then.refuse(SCHEMA)
    if isinstance(then, Function) and then.batches:
        raise ConfigurationError(
            f"sink {name!r}: then={then.name!r} has batches=True; the stage after files is called "
            "with one Manifest at a time"
        )
    if then is not None and not isinstance(then, Sink | Loader) and not callable(then):
        raise ConfigurationError(
            f"sink {name!r}: then is neither a loader nor a sink nor a function, but a "
            f"{type(then).__name__}"
        )
    calls = (then, *(getattr(then, each, None) for each in ("known", "load")))
    if any(map(runs_nothing, calls)):
        raise ConfigurationError(
            f"sink {name!r}: what then names is `async def` or has a `yield`, so a "
            "call would load nothing. Make it an ordinary function that waits for its end"
        )


def stage_of(
    name: str, then: object, standing: Callable[[str, Minibatch], Manifest]
) -> Sink | None:
    """Give the second stage of the sink `name` as a sink of manifests; None where there is none, or
    a loader, which keeps its own key.
    """
    if then is None or (isinstance(then, Loader) and not isinstance(then, Sink)):
        return None
    if isinstance(then, Sink) and not isinstance(then, Function):
        return then
    if not isinstance(then, Function):
        function = cast("Callable[[Manifest], object]", then)
        return ManifestFunction(name=f"{name}.then", function=function, standing=standing)
    settings: dict[str, Any] = {
        each: getattr(then, each)
        for each in ("name", "on_doubt", "on_reject", "lease_s", "deadline_s", "retry")
    }
    probe = cast("Callable[[Any], bool | None] | None", then.probe)
    if probe is not None:
        settings["probe"] = lambda event: probe(
            standing(event.value["pipeline"], minibatch_in(event))
        )
    return ManifestFunction(
        **settings, park_limit=then.park_limit, function=then.function, standing=standing
    )
