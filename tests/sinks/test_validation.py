"""The settings of every sink: they exist and fit, or are refused with what to do."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import semel
from semel.delivery.spec import PipelineSpec
from semel.errors import ConfigurationError
from semel.events import Given
from semel.protocol import OnDoubt, OnReject
from semel.sinks import Files, Function, Http, Kafka, Postgres, Redis, Retry, Sink

MADE: dict[str, tuple[Callable[..., Sink], dict[str, Any]]] = {
    "Postgres": (Postgres, {"url": "postgresql://h/d", "table": "t"}),
    "Redis": (Redis, {"url": "redis://h", "key": "{c}", "command": "DEL"}),
    "Http": (Http, {"url": "http://h"}),
    "Kafka": (Kafka, {"servers": "h:9092", "topic": "t"}),
    "Files": (Files, {"url": "/nowhere"}),
    "Function": (Function, {"function": print}),
}
every_sink = pytest.mark.parametrize("kind", MADE)


def made(kind: str, **settings: Any) -> Sink:
    make, own = MADE[kind]
    return make(**{"name": "out", **own, **settings})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name must be a non-empty string, got ''"),
    ({"name": 7}, "name must be a non-empty string, got 7"),
    ({"retry": 30}, r"sink 'out': retry must be a Retry; pass Retry\(for_s=30\)"),
    ({"retry": "long"}, r"retry must be a Retry; pass Retry\(for_s=30\)"),
    ({"on_doubt": "resent"}, "use hold, resend, skip, stop or a function"),
    ({"on_reject": "drop"}, "use park or block"),
    ({"deadline_s": "30"}, "deadline_s must be a number of seconds, not negative, got '30'"),
    ({"lease_s": float("nan")}, "lease_s must be a number of seconds, not negative, got nan"),
    ({"chunk_rows": "10"}, "chunk_rows must be an integer of at least 1, got '10'"),
    ({"park_limit": 1.5}, "park_limit must be an integer of at least 0, got 1.5"),
    ({"deadline": 3}, "unknown setting 'deadline'; did you mean 'deadline_s'[?] Settings: name, "),
    ({"quux": 3}, "sink 'out': unknown setting 'quux'[.] Settings: name, "),
]


@every_sink
@pytest.mark.parametrize(("settings", "said"), BAD)
def test_a_setting_that_cannot_be_is_refused(
    kind: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        made(kind, **settings)


@every_sink
def test_a_policy_may_be_given_as_a_text(kind: str) -> None:
    sink = made(kind, on_doubt="resend", on_reject="block")
    assert sink.on_doubt is OnDoubt.RESEND
    assert sink.on_reject is OnReject.BLOCK


@every_sink
def test_a_setting_that_is_missing_is_named(kind: str) -> None:
    make, own = MADE[kind]
    missing = next(iter(own))
    with pytest.raises(ConfigurationError, match=f"sink 'out': missing: {missing}="):
        make(name="out")
    with pytest.raises(ConfigurationError, match=f"{kind}: missing: .*{missing}="):
        make()


@every_sink
def test_a_sink_that_was_made_can_be_changed_copied_and_sent(kind: str) -> None:
    sink = made(kind, retry=Retry(for_s=5))
    assert replace(sink, park_limit=3).park_limit == 3
    assert copy.copy(sink) == sink
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert {"name", "on_doubt", "retry"} <= set(inspect.signature(MADE[kind][0]).parameters)


@every_sink
def test_what_is_parked_at_once_fits_into_the_default_limit(kind: str) -> None:
    sink = made(kind)
    assert sink.park_limit >= max(10_000, sink.parked_at_once)
    PipelineSpec("p", (sink,), Given("c", ("id",)))


def test_a_limit_follows_from_the_window_or_the_chunk_unless_it_is_given() -> None:
    assert semel.sink(window=50_000)(print).park_limit == 50_000
    assert made("Http", idempotency=True, chunk_rows=70_000).park_limit == 70_000
    assert made("Kafka").park_limit == 20_000
    assert made("Postgres", park_limit=12_000).park_limit == 12_000


@pytest.mark.parametrize(
    ("sink", "least"),
    [
        (semel.sink(window=20, park_limit=19)(print), 20),
        (made("Http", idempotency=True, park_limit=5_000), 20_000),
        (made("Postgres", park_limit=9_999), 10_000),
        (replace(made("Kafka"), chunk_rows=30_000), 30_000),
    ],
)
def test_a_limit_below_what_is_parked_at_once_is_refused_before_anything_starts(
    sink: Sink, least: int
) -> None:
    with pytest.raises(ConfigurationError, match=f"park_limit of {least} or more"):
        PipelineSpec("p", (sink,), Given("c", ("id",)))


def test_a_limit_of_nothing_is_a_wish_and_not_a_mistake() -> None:
    PipelineSpec("p", (semel.sink(park_limit=0)(print),), Given("c", ("id",)))


def test_settings_are_written_with_their_names() -> None:
    with pytest.raises(ConfigurationError, match="write every setting as name=value"):
        Postgres("postgresql://h/d", name="out", url="postgresql://h/d")  # type: ignore[misc]


def test_a_function_that_takes_no_event_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="called with an event and nothing else"):
        semel.sink(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="called with an Arrow batch and nothing else"):
        semel.sink(batches=True)(lambda _, __: None)  # type: ignore[arg-type, misc]


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match=r"a lambda has no name.*semel\.sink\(name="):
        semel.sink(lambda _: None)
    with pytest.raises(ConfigurationError, match="a lambda has no name"):
        semel.sink(window=10)(lambda _: None)
    assert semel.sink(name="charge")(lambda _: None).name == "charge"


def test_what_follows_from_the_window_is_no_setting_of_a_function() -> None:
    with pytest.raises(ConfigurationError, match="unknown setting 'chunk_rows'"):
        semel.sink(chunk_rows=5)(print)  # type: ignore[call-overload]


def test_a_probe_is_said_once() -> None:
    with pytest.raises(ConfigurationError, match="pass only one of them"):
        made("Http", on_doubt=lambda _: True, probe=lambda _: True)
    asked = made("Http", on_doubt=lambda _: True)
    assert asked.on_doubt is OnDoubt.PROBE
    assert asked.probe is not None


def test_a_window_where_a_repeat_is_absorbed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="window=5 with idempotency"):
        made("Http", idempotency=True, window=5)


def test_a_method_may_be_written_small() -> None:
    assert Http(name="out", url="http://h", method="put").method == "PUT"
    with pytest.raises(ConfigurationError, match="unknown method 'GET'; use POST, PUT"):
        made("Http", method="GET")


def test_a_word_of_the_client_that_is_semels_own_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigurationError, match="'acks' cannot be in config: a transaction waits"):
        made("Kafka", config={"acks": 1})
    with pytest.raises(ConfigurationError, match="cannot be in config: pass it as servers="):
        made("Kafka", config={"bootstrap.servers": "h"})


def test_redis_says_how_a_template_and_arguments_are_written() -> None:
    with pytest.raises(ConfigurationError, match=r"meant literally: '\{\{bank\}\}:\{customer\}'"):
        made("Redis", key="{c")
    with pytest.raises(
        ConfigurationError, match=r'arguments must be a tuple: write \("\{amount\}",\)'
    ):
        made("Redis", command="INCRBY", arguments="{amount}")


def test_words_of_deliver_are_looked_at_before_anything_else() -> None:
    with pytest.raises(ConfigurationError, match="'chargs': unknown setting 'entitty'; did"):
        semel.deliver(None, to=print, name="chargs", entitty="c")  # type: ignore[call-arg,arg-type]
    with pytest.raises(ConfigurationError, match="pipeline: missing: name="):
        semel.deliver(None, to=print)  # type: ignore[call-arg,arg-type]
    with pytest.raises(ConfigurationError, match="'x': missing: batch="):
        semel.deliver_batch(None, to=print, name="x")  # type: ignore[call-arg,arg-type]
