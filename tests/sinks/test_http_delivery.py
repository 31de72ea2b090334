"""A service over HTTP behind the real engine and ledger: crashes, doubts, dead letters, TLS."""

from __future__ import annotations

import json
import random
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.errors import HeldInDoubt, NotDelivered
from semel.events import Attempt, Given
from semel.ledger.client import LedgerClient
from semel.ledger.inspect.ledger import TABLES
from semel.ledger.journal import Journal
from semel.ledger.store.opening import open_store
from semel.ledger.verbs.parked import read_parked
from semel.protocol import ParkedState
from semel.runtime import Process
from semel.sinks import Retry
from semel.sinks.http import Bearer, Certificate, Http
from semel.verify.servers.http_witness import HttpWitness
from support.pipeline import GIVEN, World, crash_everywhere
from support.sinks.http_calls import TARGET, ScriptedServer, chunk_of, serve

INPUT = "a1 b2 a3 c4 b5 a6"
HASTY: dict[str, Any] = {"timeout_s": 1.0, "deadline_s": 2.0, "retry": Retry(0.01, 0.02, 0.1)}


@pytest.fixture(scope="module")
def services() -> Iterator[dict[bool, HttpWitness]]:
    with HttpWitness(absorbs=True) as absorbing, HttpWitness(absorbs=False) as counting:
        yield {True: absorbing, False: counting}


def world_of(service: HttpWitness, **settings: Any) -> World:
    """A started pipeline to a service that was asked nothing yet."""
    service.forget()
    world = World(GIVEN)
    path = f"{service.url}/charges/{{c}}/{{id}}"
    world.sinks.append(Http(name="out", url=path, **{**HASTY, **settings}))
    world.start()
    return world


def arrived(service: HttpWitness) -> list[str]:
    return [f"{each.body['c']}{each.body['id']}" for each in service.effects()]


def assert_ordered(names: list[str]) -> None:
    for entity in "abc":
        mine = [name for name in names if name[0] == entity]
        assert mine == sorted(mine)


WAYS: dict[str, dict[str, Any]] = {
    "repeatable": {"idempotency": True, "chunk_rows": 2, "span_chunks": 2},
    "probing": {"probe": "{url}/requests/{{semel.key}}"},
    "opaque, asked by columns": {"probe": "{url}/charges/{{c}}/{{id}}", "window": 3},
}


def settings_of(way: str, service: HttpWitness) -> dict[str, Any]:
    return {
        name: value.format(url=service.url) if name == "probe" else value
        for name, value in WAYS[way].items()
    }


@pytest.mark.rows("S17", "S21", "A13", "A14", "N3")
@pytest.mark.parametrize("way", WAYS)
def test_a_crash_around_any_word_to_the_ledger_loses_nothing_and_repeats_nothing(
    way: str, services: dict[bool, HttpWitness]
) -> None:
    service = services[way == "repeatable"]
    tried = 0
    for what, world in crash_everywhere(
        lambda: world_of(service, **settings_of(way, service)),
        lambda world: world.minibatch(0, INPUT),
    ):
        world.start()
        world.minibatch(0, INPUT)
        world.minibatch(1, "a7 b8")
        assert sorted(arrived(service)) == sorted([*INPUT.split(), "a7", "b8"]), what
        assert_ordered(arrived(service))
        assert world.parked() == [], what
        tried += 1
    assert tried >= 8


@pytest.mark.rows("S17", "S21", "N3")
@pytest.mark.parametrize("window", [1, 3])
def test_without_key_and_probe_no_more_than_the_window_is_in_doubt(
    window: int, services: dict[bool, HttpWitness]
) -> None:
    service = services[False]
    for what, world in crash_everywhere(
        lambda: world_of(service, window=window), lambda world: world.minibatch(0, INPUT)
    ):
        world.start()
        world.minibatch(0, INPUT)
        names = arrived(service)
        held = [name for name in world.parked() if name.endswith("held")]
        waiting = [name.split()[0] for name in world.parked() if name.endswith("waiting")]
        assert len(names) == len(set(names)), what
        assert len(held) <= window, what
        assert not set(waiting) & set(names)
        assert set(INPUT.split()) == {*names, *waiting, *(name.split()[0] for name in held)}


@pytest.mark.rows("S21")
def test_an_answer_that_was_lost_is_held_and_the_others_go_on(
    services: dict[bool, HttpWitness],
) -> None:
    service = services[False]
    world = world_of(service, window=4)
    service.plan(close=True, effect=True, match='"id":3')
    world.minibatch(0, INPUT)
    assert sorted(world.parked()) == ["a3 held", "a6 waiting"]
    assert sorted(arrived(service)) == ["a1", "a3", "b2", "b5", "c4"]
    world.resolve("a3", "delivered")
    world.start()
    world.minibatch(1, "a7")
    assert arrived(service)[-2:] == ["a6", "a7"]


@pytest.mark.rows("S21", "A14")
@pytest.mark.parametrize("effect", [True, False])
def test_an_answer_that_was_lost_is_asked_for(
    effect: bool, services: dict[bool, HttpWitness]
) -> None:
    for way in ("probing", "opaque, asked by columns"):
        service = services[False]
        world = world_of(service, **settings_of(way, service))
        service.plan(close=True, effect=effect, match='"id":3')
        world.minibatch(0, INPUT)
        assert sorted(arrived(service)) == sorted(INPUT.split())
        assert_ordered(arrived(service))
        assert [name for name in world.parked() if "held" in name] == []


def test_a_probe_that_cannot_tell_leaves_the_event_in_doubt(
    services: dict[bool, HttpWitness],
) -> None:
    service = services[False]
    world = world_of(service, **settings_of("opaque, asked by columns", service))
    service.plan(status=500, match='"id":4')
    service.plan(status=403, match="GET")
    world.minibatch(0, INPUT)
    assert world.parked() == ["c4 held"]


def test_rejected_events_are_dead_letters_with_the_response_and_their_entity_goes_on(
    services: dict[bool, HttpWitness],
) -> None:
    for absorbs in (True, False):
        service = services[absorbs]
        world = world_of(service, idempotency=absorbs, window=1 if absorbs else 6)
        service.plan(status=402, text="no money", match='"id":3')
        world.minibatch(0, INPUT)
        assert world.parked() == ["a3 rejected"]
        [(_, row)] = world.parked_rows()
        assert "402 Payment Required. Response: no money" in row.why
        assert sorted(arrived(service)) == ["a1", "a6", "b2", "b5", "c4"]
        assert_ordered(arrived(service))


def test_a_service_that_is_down_parks_nothing_and_leaves_no_doubt() -> None:
    for settings in ({"idempotency": True}, {"window": 4}):
        with HttpWitness() as service:
            world = world_of(service, **settings)
        opening = world.open(0)
        with pytest.raises(NotDelivered, match="could not be reached"):
            world.task(opening, INPUT)
        assert world.parked() == []
        if "window" in settings:
            assert world.spans() == []


def test_a_service_restarted_within_a_chunk_gets_every_event_once(tmp_path: Path) -> None:
    with HttpWitness(delay_s=0.02, journal=tmp_path / "journal") as service:
        sink = Http(
            name="out",
            url=service.url,
            idempotency=True,
            concurrency=4,
            timeout_s=1.0,
            deadline_s=10.0,
            retry=Retry(0.01, 0.2, 20.0),
        )
        opened = sink.open(TARGET)
        service.plan(close=True, effect=True, after=40, times=3)
        assert opened.deliver(chunk_of([f"c{n % 8}" for n in range(80)])).failures == {}
        service.stop()
        service.start()
        assert opened.deliver(chunk_of([f"c{n % 8}" for n in range(80)], start=40)).failures == {}
        opened.close()
        ids = [each.body["payment_id"] for each in service.effects()]
        assert sorted(ids) == list(range(120))
        assert service.figures()["repeats"] == 40


def test_a_broken_service_stops_the_pipeline_and_parks_no_stream(
    services: dict[bool, HttpWitness],
) -> None:
    service = services[False]
    world = world_of(service)
    service.plan(status=500, times=1_000)
    opening = world.open(0)
    with pytest.raises(HeldInDoubt, match="10 outcomes in a row"):
        world.task(opening, " ".join(f"{'abcdefghijklmnop'[n]}{n}" for n in range(16)))


# -- ten thousand


def malformed(count: int) -> pa.RecordBatch:
    """Rows that no service was made for; some cannot be written in a URL or a header at all."""
    luck = random.Random(7)
    odd = [
        None,
        "",
        "..",
        "a/../../b",
        "\r\nX-Evil: 1",
        "\x00",
        "é日本🙂",
        '"}{"\\',
        "%2e%2e",
        "x" * 3_000,
        "; drop table",
        "\u202e\ufeff",
    ]
    return pa.RecordBatch.from_pydict(
        {
            "customer": [f"c{luck.randrange(200)}" for _ in range(count)],
            "id": list(range(count)),
            "part": [luck.choice(odd) if luck.random() < 0.05 else "fine" for _ in range(count)],
            "note": [luck.choice(odd) if luck.random() < 0.05 else "plain" for _ in range(count)],
            "amount": [luck.choice([1.5, None, float("nan"), -0.0, 1e308]) for _ in range(count)],
        }
    )


@pytest.mark.rows("S17", "N3")
def test_ten_thousand_malformed_events_are_delivered_or_parked_with_a_reason(
    tmp_path: Path,
) -> None:
    rows = malformed(10_000)
    with HttpWitness() as service:
        sink = Http(
            name="bank",
            url=f"{service.url}/charges/{{part}}",
            headers={"X-Note": "{note}", "X-Key": "s3cr3t-key"},
            body={"customer": "{customer}", "id": "{id}", "note": "{note}"},
            auth=Bearer("s3cr3t-token"),
            idempotency=True,
            concurrency=64,
        )
        service.plan(status=400, text="s3cr3t-token? no", match='"id":77}', times=1)
        service.plan(status=503, times=50, after=3_000)
        parked, ledger = delivered(sink, rows, tmp_path)
        seen = [each.body for each in service.effects()]
        assert service.figures()["overlaps"] == 0
        assert all("X-Evil" not in head.split("\r\n") for head in service.heads())
    ids = [each["id"] for each in seen]
    assert sorted([*ids, *parked]) == list(range(10_000))
    assert 200 < len(parked) < 2_000
    assert all(parked.values())
    values = rows.to_pylist()
    assert all(values[each["id"]]["note"] == each["note"] for each in seen)
    for customer in {each["customer"] for each in seen}:
        mine = [each["id"] for each in seen if each["customer"] == customer]
        assert mine == sorted(mine)
    assert "s3cr3t" not in ledger


def delivered(sink: Http, rows: pa.RecordBatch, folder: Path) -> tuple[dict[Any, str], str]:
    """Deliver one minibatch with a ledger in SQLite; give why events are parked, and all text."""
    identity = Given(entity="customer", event=("id",))
    store = open_store(f"sqlite:///{folder}/ledger.db")
    client, me = LedgerClient(store, "pay"), Process.here()
    driver = Driver(client, [sink], identity, me, "nonce")
    driver.start()
    opening = driver.begin("query", 0)
    assignment = Assignment("pay", opening, identity, "0", Attempt(driver.run, 1), me, 0)
    reports = PartitionDelivery(assignment, [sink], client, Journal(client)).run([rows])
    driver.end(opening, reports)
    parked = [row for _, row, _ in read_parked(client, sink.name)]
    assert {row.state for row in parked} == {ParkedState.REJECTED}
    text = json.dumps(
        [[str(key), value] for table in TABLES for key, value in store.scan(table, "")]
    )
    store.close()
    return {row.event: row.why for row in parked}, text


# -- TLS


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server's certificate for 127.0.0.1, and a client's."""
    folder = tmp_path_factory.mktemp("papers")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    openssl(*made, "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name, secret in (("server", []), ("client", ["-passout", "pass:s3cret"])):
        hidden = secret or ["-nodes"]
        openssl(
            *[*made, *hidden, "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            *["-subj", f"/CN={name}", "-CA", "ca.pem", "-CAkey", "ca.key"],
            *["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:false"],
        )
    return folder


@pytest.fixture
def secure(papers: Path) -> Iterator[ScriptedServer]:
    """A service that wants a client's certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(papers / "ca.pem"))
    context.load_cert_chain(papers / "server.pem", papers / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    with ScriptedServer(serve, tls=context) as wire:
        yield wire


def test_tls_is_verified_and_a_certificate_is_shown(
    papers: Path, secure: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_PASSWORD", "s3cret")
    shown = Certificate(
        str(papers / "client.pem"), str(papers / "client.key"), password="${KEY_PASSWORD}"
    )
    cases: list[tuple[dict[str, Any], type[Exception] | None]] = [
        ({"ca": str(papers / "ca.pem"), "auth": (Bearer("t0ken"), shown)}, None),
        ({"auth": shown}, NotDelivered),  # the machine's CAs do not know this one
    ]
    for settings, expected in cases:
        opened = Http(name="bank", url=secure.url, **HASTY, **settings).open(TARGET)
        why = opened.deliver(chunk_of("a")).failures
        opened.close()
        assert {type(each) for each in why.values()} == ({expected} if expected else set())
        assert len(secure.requests) == 1
    assert b"Authorization: Bearer t0ken" in secure.requests[0]
    wrong = secure.url.replace("127.0.0.1", "localhost")
    opened = Http(name="bank", url=wrong, **HASTY, **cases[0][0]).open(TARGET)
    assert isinstance(opened.deliver(chunk_of("a")).failures[0], NotDelivered)
    opened.close()
    assert len(secure.requests) == 1
