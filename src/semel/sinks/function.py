"""A Python function as a sink: called with one event, or with one Arrow batch (OPAQUE).

semel knows nothing of what the function does: an exception other than `NotDelivered` and `Rejected`
means that the event may have arrived.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, cast, overload

from semel.errors import (
    ConfigurationError,
    DeliveryError,
    NotDelivered,
    OutcomeUnknown,
)
from semel.protocol import Capability, OnDoubt
from semel.sinks.callables import Unclassified, left_to_run, runs_nothing
from semel.sinks.sink import DELIVERED, Receipt, Session, Sink, Target
from semel.sinks.validation import require_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.events import Chunk, Event
    from semel.protocol import OnReject, RejectWord
    from semel.sinks.callables import Retry
    from semel.sinks.files.manifests import Manifest
    from semel.sinks.validation import Doubt

    EventFunction = Callable[[Event], object] | Callable[[Manifest], object]

_P = ParamSpec("_P")
_LAMBDA = (lambda: None).__name__


@dataclass(frozen=True, kw_only=True)
class Function(Sink):
    """Calls `function` with each event, or with each Arrow batch of up to `window` events.

    `window` is how many events may be in doubt at once after a crash; one is the safest.
    """

    function: Callable[..., object] = field(repr=False)  # a partial shows what it was given
    window: int = 1
    batches: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            kind = type(self.function).__name__
            raise ConfigurationError(f"sink {self.name!r}: function must be callable, got {kind}")
        if runs_nothing(self.function):
            raise ConfigurationError(
                f"sink {self.name!r}: the function is `async def` or has a `yield`, so a call "
                "would send nothing. Make it an ordinary function that waits for its result"
            )
        if not _takes_one(self.function):
            what = "an Arrow batch" if self.batches else "an event"
            raise ConfigurationError(
                f"sink {self.name!r}: the function is called with {what} and nothing else, but it "
                "does not take exactly one argument. Change its parameters"
            )
        if type(self.window) is not int or self.window < 1:
            raise ConfigurationError(
                f"sink {self.name!r}: window must be an integer of at least 1, got {self.window!r}"
            )
        if (self.on_doubt is OnDoubt.PROBE) != (self.probe is not None):
            raise ConfigurationError(
                f"sink {self.name!r}: on_doubt='probe' needs a probe function, and a probe "
                "function needs on_doubt='probe'; pass on_doubt=your_function"
            )
        object.__setattr__(self, "chunk_rows", self.window)
        object.__setattr__(self, "span_chunks", 1)

    @property
    def capability(self) -> Capability:
        """OPAQUE: semel knows nothing of what the function does."""
        return Capability.OPAQUE

    @property
    def takes_python_values(self) -> bool:
        """Whether the function takes events, not Arrow batches."""
        return not self.batches

    @property
    def pickling_advice(self) -> str:
        """What to do with a part of the function that cannot be pickled."""
        return "Open it inside the function, or keep it in a module that the function imports"

    def open(self, target: Target) -> Session:
        """Nothing to connect to: the function brings its own connections."""
        del target
        return _Batches(self.function) if self.batches else _Events(self.function)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Travel by name where a module calls it so: a decorated function, and one of other
        settings made of it, whose function has no name of its own any more.
        """
        module, name = self.function.__module__, getattr(self.function, "__qualname__", "")
        found = None if module == "__main__" else _named(module, name)
        if found is self:
            return _named, (module, name)
        if isinstance(found, Function) and found.function is self.function:
            settings = {each.name: getattr(self, each.name) for each in fields(self)}
            del settings["function"]
            return _changed, (module, name, settings)
        return cast("tuple[Any, ...]", super().__reduce__())

    def __call__(self, *arguments: Any, **options: Any) -> object:
        """Call the function itself, as if it were not decorated."""
        return self.function(*arguments, **options)


def _takes_one(function: Callable[..., object]) -> bool:
    """Return whether a function can be called with one argument, as far as its signature shows."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True  # some functions written in C have no signature
    return True


def _named(module: str, name: str) -> object:
    """Find what a module calls by this name; None when it calls nothing so."""
    found: object = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _changed(module: str, name: str, settings: dict[str, Any]) -> Function:
    """Make a sink of other settings of a function that a module has decorated."""
    return Function(**settings, function=cast("Function", _named(module, name)).function)


@dataclass(slots=True)
class _Events:
    """Calls the function once for each event, in order, and stops at the first that fails."""

    function: Callable[..., object]

    def deliver(self, chunk: Chunk) -> Receipt:
        for place, event in enumerate(chunk.events()):
            failure = _failure(self.function, event)
            if failure is not None:
                untried = NotDelivered("not tried: an event before it failed")
                rest = dict.fromkeys(range(place + 1, len(chunk)), untried)
                return Receipt({place: failure, **rest})
        return DELIVERED

    def close(self) -> None:
        return


@dataclass(slots=True)
class _Batches:
    """Calls the function with the chunk's Arrow batch."""

    function: Callable[..., object]

    def deliver(self, chunk: Chunk) -> Receipt:
        failure = _failure(self.function, chunk.rows.batch)
        if failure is not None:
            raise failure
        return DELIVERED

    def close(self) -> None:
        return


def _failure(function: Callable[..., object], argument: object) -> DeliveryError | None:
    """Call the function and classify what it raises; an unclassified exception means unknown."""
    try:
        answer = function(argument)
        left = None if answer is None else left_to_run(answer)
    except DeliveryError as error:
        return error
    except Exception as error:  # noqa: BLE001 - an unclassified error means unknown
        return Unclassified.of(error)
    return None if left is None else OutcomeUnknown(f"the function returned {left}")


def _decorator(make: Callable[_P, Function]) -> Callable[_P, Any]:
    """Make a decorator of `make`, usable with and without settings; it raises `ConfigurationError`
    for an unknown setting, as sinks do.
    """

    @wraps(make)
    def decorating(*given: _P.args, **settings: _P.kwargs) -> Any:
        def made(*functions: Any) -> Function:
            own = settings.get("name") or (_name_of(functions[0]) if functions else "")
            require_words(make, f"sink {own!r}", functions, settings)
            checked: Callable[..., Function] = make
            return checked(*functions, **settings)

        return made(*given) if given else made

    return decorating


@overload
def sink(function: EventFunction, /) -> Function: ...


@overload
def sink(
    *,
    window: int = 1,
    on_doubt: Doubt = "hold",
    on_reject: OnReject | RejectWord = "park",
    batches: Literal[False] = False,
    name: str | None = None,
    lease_s: float = 10.0,
    deadline_s: float = 30.0,
    retry: Retry | None = None,
    park_limit: int | None = None,
    probe: Callable[[Event], bool | None] | None = None,
) -> Callable[[EventFunction], Function]: ...


@overload
def sink(
    *,
    window: int = 1,
    on_doubt: Doubt = "hold",
    on_reject: OnReject | RejectWord = "park",
    batches: bool,
    name: str | None = None,
    lease_s: float = 10.0,
    deadline_s: float = 30.0,
    retry: Retry | None = None,
    park_limit: int | None = None,
    probe: Callable[[Event], bool | None] | None = None,
) -> Callable[[Callable[[Any], object]], Function]: ...


@_decorator
def sink(  # noqa: PLR0913 - each is a setting, and all have a default
    function: Callable[[Any], object] | None = None,
    /,
    *,
    window: int = 1,
    on_doubt: Doubt = "hold",
    on_reject: OnReject | RejectWord = "park",
    batches: bool = False,
    name: str | None = None,
    lease_s: float = 10.0,
    deadline_s: float = 30.0,
    retry: Retry | None = None,
    park_limit: int | None = None,
    probe: Callable[[Event], bool | None] | None = None,
) -> Function:
    """Make a sink of a function: `@semel.sink` or `@semel.sink(window=1, on_doubt="hold")`.

    Args:
        function: it is called with each event, or as `Files(then=...)` with each manifest.
        window: how many events may be in doubt at once after a crash; one is the safest.
        on_doubt: `hold`, `resend`, `skip`, `stop`, or a function that takes the event and returns
            whether it arrived (True, False, or None if it is unknown).
        on_reject: whether the entity of a rejected event goes on (`park`) or waits (`block`).
        batches: the function takes an Arrow batch of up to `window` events.
        name: the name of the sink in the ledger; by default the function's own name.
        lease_s: how long an attempt may act on its last read of the ledger.
        deadline_s: how long one call may take.
        retry: how long `NotDelivered` is tried again.
        park_limit: how many events may be parked before the pipeline stops: 10,000, or the window
            if that is more.
        probe: the same as a function passed as `on_doubt`.
    """
    given = {"retry": retry, "park_limit": park_limit}
    made = Function(
        name=_name_of(function) if name is None else name,
        function=cast("Callable[..., object]", function),
        window=window,
        batches=batches,
        on_doubt=on_doubt,
        on_reject=on_reject,
        probe=probe,
        lease_s=lease_s,
        deadline_s=deadline_s,
        **cast("Any", {name: value for name, value in given.items() if value is not None}),
    )
    if name is None and made.name == _LAMBDA:
        raise ConfigurationError(
            "a lambda has no name, and the ledger keeps deliveries under the name of the sink: "
            'pass one, semel.sink(name="charge")(lambda event: ...), or define a function with def'
        )
    return made


def _name_of(function: object) -> str:
    found: str = getattr(function, "__name__", type(function).__name__)
    return found
