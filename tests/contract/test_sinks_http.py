"""Http earns each of its capabilities: the contract suite against a service of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from semel.sinks import Sink
from semel.sinks.http import Http
from semel.verify.contract.plugin import SinkContract
from semel.verify.servers.http_witness import HttpWitness

pytestmark = pytest.mark.rows("N10")


@pytest.fixture(scope="module")
def services() -> Iterator[dict[bool, HttpWitness]]:
    """A service that absorbs repeats, and one that does not; both refuse what asks for it."""
    with HttpWitness(absorbs=True) as absorbing, HttpWitness(absorbs=False) as counting:
        for each in (absorbing, counting):
            each.plan(status=422, text="refused", match="refuse this", times=1_000_000)
        yield {True: absorbing, False: counting}


class OverHttp(SinkContract):
    absorbs = False
    path = ""
    probe: str | None = None
    settings: dict[str, Any] = {}  # noqa: RUF012 - a subclass has its own

    @pytest.fixture
    def sink(self, services: dict[bool, HttpWitness]) -> Sink:
        self.service = services[self.absorbs]
        url = f"{self.service.url}/{self.path}/{{customer}}/{{payment_id}}"
        probe = None if self.probe is None else self.service.url + self.probe
        return Http(name=self.path, url=url, probe=probe, timeout_s=2.0, **self.settings)

    def arrived(self) -> list[tuple[object, object]]:
        mine = [each for each in self.service.effects() if each.path.startswith(f"/{self.path}/")]
        return [(each.body["customer"], each.body["payment_id"]) for each in mine]


class TestByKey(OverHttp):
    absorbs = True
    path = "keyed"
    settings = {"idempotency": True}  # noqa: RUF012 - a subclass has its own


class TestAskedByKey(OverHttp):
    path = "calls"
    probe = "/requests/{semel.key}"


class TestNothing(OverHttp):
    path = "plain"
    settings = {"window": 2}  # noqa: RUF012 - a subclass has its own
