"""Http earns REPEATABLE, PROBING and OPAQUE, as the service it calls can do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.bench.http_witness import HttpWitness
from semel.sinks import Sink
from semel.sinks.http import Http
from semel.verify.plugin import SinkContract

pytestmark = pytest.mark.rows("N10")


@pytest.fixture(scope="module")
def absorbing() -> Iterator[HttpWitness]:
    with HttpWitness() as witness:
        yield witness


@pytest.fixture(scope="module")
def counting() -> Iterator[HttpWitness]:
    with HttpWitness(absorbs=False) as witness:
        yield witness


class AtAService(SinkContract):
    service: HttpWitness

    def arrived(self) -> Iterator[tuple[str, int]]:
        for effect in self.service.effects():
            yield effect.body["customer"], effect.body["payment_id"]


class TestRepeatable(AtAService):
    @pytest.fixture
    def sink(self, absorbing: HttpWitness) -> Sink:
        self.service = absorbing
        return Http(name="bank", url=f"{absorbing.url}/charges", idempotency=True)


class TestProbing(AtAService):
    @pytest.fixture
    def sink(self, counting: HttpWitness) -> Sink:
        self.service = counting
        url = counting.url
        return Http(name="bank", url=f"{url}/charges", probe=f"{url}/arrived/{{semel.key}}")


class TestOpaque(AtAService):
    @pytest.fixture
    def sink(self, counting: HttpWitness) -> Sink:
        self.service = counting
        return Http(name="bank", url=f"{counting.url}/charges", window=2)
