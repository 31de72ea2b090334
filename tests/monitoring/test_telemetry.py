"""OpenTelemetry by its own SDK: a trace for each minibatch, spans of partitions, the metrics."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from semel.delivery import Observers
from semel.monitoring import METRICS, MetricKind, telemetry
from semel.monitoring.pipeline_figures import PipelineFigures
from semel.monitoring.telemetry import Traces, instrument_name, measure
from support.destinations import Database
from support.pipeline import World


@pytest.fixture(scope="module")
def sdk() -> tuple[InMemorySpanExporter, InMemoryMetricReader]:
    """The SDK of this process: an application sets it up once."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    return exporter, reader


@pytest.fixture
def spans(sdk: tuple[InMemorySpanExporter, InMemoryMetricReader]) -> Iterator[InMemorySpanExporter]:
    sdk[0].clear()
    yield sdk[0]
    sdk[0].clear()


def traced() -> tuple[World, Traces]:
    world = World()
    traces = Traces(world.clock)
    world.observer = Observers([traces])
    world.add(Database(), name="out")
    world.add(Database(), name="copy")
    world.start()
    return world, traces


def test_a_minibatch_is_one_trace_with_a_span_for_each_partition_and_sink(
    spans: InMemorySpanExporter,
) -> None:
    world, _ = traced()
    opening = world.open(0)
    reports = [*world.task(opening, "a1 a2 b3"), *world.task(opening, "c4", partition="1")]
    world.clock.move(5)
    world.driver.end(opening, reports)
    world.minibatch(1, "a5")
    found: Any = spans.get_finished_spans()
    whole = [each for each in found if each.name == "semel.minibatch"]
    parts = [each for each in found if each.name == "semel.partition"]
    assert len({each.context.trace_id for each in whole}) == 2
    first = whole[0]
    within = [each for each in parts if each.context.trace_id == first.context.trace_id]
    assert all(each.parent.span_id == first.context.span_id for each in within)
    assert sorted(
        (each.attributes["semel.sink"], each.attributes["semel.partition"]) for each in within
    ) == [("copy", "0"), ("copy", "1"), ("out", "0"), ("out", "1")]
    assert sum(each.attributes["semel.delivered"] for each in within) == 8
    assert first.attributes["semel.delivered"] == 8
    assert first.attributes["semel.minibatch"] == "1.0"
    assert first.end_time - first.start_time == 5_000_000_000
    assert first.start_time <= within[0].start_time <= within[0].end_time <= first.end_time
    assert first.status.is_ok or first.status.status_code is trace.StatusCode.UNSET


def test_a_minibatch_that_was_not_completed_is_a_span_with_an_error(
    spans: InMemorySpanExporter,
) -> None:
    world, traces = traced()
    world.open(0)
    traces.close()
    traces.close()
    [span] = spans.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == "the query ended before the minibatch was complete"


def test_a_minibatch_that_is_opened_again_ends_the_span_of_the_first_try(
    spans: InMemorySpanExporter,
) -> None:
    world, _ = traced()
    world.open(0)
    world.minibatch(0, "a1")
    codes = [
        each.status.status_code
        for each in spans.get_finished_spans()
        if each.name == "semel.minibatch"
    ]
    assert codes == [trace.StatusCode.ERROR, trace.StatusCode.UNSET]


def test_the_metrics_are_the_same_figures(
    sdk: tuple[InMemorySpanExporter, InMemoryMetricReader],
) -> None:
    world = World()
    figures = PipelineFigures("pay", ["out"], world.clock)
    world.observer = figures
    world.add(Database(), name="out")
    world.start()
    end = measure(figures.samples)
    world.minibatch(0, "a1 a2 b3")
    found = read(sdk[1])
    assert found["semel.events.delivered"] == [({"pipeline": "pay", "sink": "out"}, 3)]
    assert found["semel.minibatch.seconds.count"] == [({"pipeline": "pay"}, 1)]
    assert {dict(labels)["where"] for labels, _ in found["semel.ledger.commit.seconds.sum"]} == {
        "driver",
        "tasks",
    }
    end()
    end()
    assert not read(sdk[1])


def read(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """The metrics as the SDK collects them now."""
    data: Any = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        each.name: [(dict(point.attributes), point.value) for point in each.data.data_points]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for each in scope.metrics
    }


def test_every_metric_has_an_instrument_of_its_own() -> None:
    names = [instrument_name(each) for each in METRICS]
    assert len(set(names)) == len(METRICS)
    made = telemetry._make(metrics)
    double = (MetricKind.HISTOGRAM, MetricKind.SUMMARY)
    assert len(made) == len(METRICS) + sum(each.kind in double for each in METRICS.values())


def test_without_an_sdk_nothing_is_recorded_and_without_the_api_the_extra_is_named() -> None:
    script = """
import sys
from semel.monitoring import Monitoring
assert not any(each.startswith("opentelemetry") for each in sys.modules), "loaded unasked"
from support.destinations import Database
from support.pipeline import World
from semel.monitoring.telemetry import Traces
world = World()
world.observer = traces = Traces(world.clock)
world.add(Database())
world.start()
world.minibatch(0, "a1")
assert traces._open is None
assert not any(each.startswith("opentelemetry.sdk") for each in sys.modules)
for name in [each for each in sys.modules if each.startswith("opentelemetry")]:
    del sys.modules[name]
sys.modules["opentelemetry"] = None
try:
    Monitoring(otel=True).check("pay")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="tests"
    )
    said = "MissingExtra otel=True needs the API of OpenTelemetry: pip install 'semel[otel]'\n"
    assert (done.stdout, done.stderr) == (said, "")
