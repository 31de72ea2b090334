"""Calls through a proxy, by a tunnel: a real proxy, and a real TLS server with a CA of its own."""

from __future__ import annotations

import base64
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel.errors import ConfigurationError, DeliveryError, NotDelivered, OutcomeUnknown
from semel.sinks import Retry
from semel.sinks.http import Bearer, Http
from semel.sinks.http.tunnels import proxy_for
from support.servers.connect_proxy import ConnectProxy
from support.sinks.http_calls import TARGET, Conversation, ScriptedServer, chunk_of, serve

BANK = "https://bank.invalid/charges"
"""A name that only the proxy knows."""


def run(folder: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and a certificate of it for bank.invalid."""
    folder = tmp_path_factory.mktemp("certificates")
    new = "-newkey rsa:2048 -nodes -days 2"
    usage = "-addext keyUsage=critical,keyCertSign"
    run(folder, f"req -x509 {new} -keyout ca.key -out ca.pem -subj /CN=test-ca {usage}")
    named = "-addext subjectAltName=DNS:bank.invalid -addext basicConstraints=critical,CA:FALSE"
    signed = "-CA ca.pem -CAkey ca.key -keyout key.pem -out bank.pem"
    run(folder, f"req -x509 {new} {signed} -subj /CN=bank {named}")
    return folder


@pytest.fixture
def tls(certificates: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "bank.pem", certificates / "key.pem")
    return context


@contextmanager
def session(certificates: Path, url: str = BANK, **words: Any) -> Iterator[Any]:
    told = {"timeout_s": 1.0, "connect_s": 1.0, "deadline_s": 4.0, "retry": Retry(for_s=0.0)}
    opened = Http(name="bank", url=url, ca=str(certificates / "ca.pem"), **{**told, **words}).open(
        TARGET
    )
    try:
        yield opened
    finally:
        opened.close()


def test_calls_go_through_the_tunnel_and_tls_is_the_destinations_own(
    certificates: Path, tls: ssl.SSLContext
) -> None:
    with ScriptedServer(serve, tls=tls) as wire, ConnectProxy(wire.port) as proxy:
        with session(
            certificates, proxy=f"http://{proxy.place}", auth=Bearer("t0p-s3cret")
        ) as opened:
            assert opened.deliver(chunk_of("a a a b")).failures == {}
        assert proxy.asked() == ["CONNECT bank.invalid:443 HTTP/1.1"] * wire.connections
        assert 1 <= wire.connections <= 2
        assert len(wire.requests) == 4
        assert all(each.startswith(b"POST /charges HTTP/1.1") for each in wire.requests)
        assert b"Host: bank.invalid\r\n" in wire.requests[0]


def test_a_plain_destination_is_reached_through_a_tunnel_too(certificates: Path) -> None:
    with ScriptedServer(serve) as wire, ConnectProxy(wire.port) as proxy:
        url = "http://bank.invalid:8080/charges"
        with session(certificates, url, proxy=f"http://{proxy.place}/") as opened:
            assert opened.deliver(chunk_of("a a")).failures == {}
        assert proxy.asked() == ["CONNECT bank.invalid:8080 HTTP/1.1"]
        assert len(wire.requests) == 2


@pytest.mark.parametrize("mode", ["refuse", "fail", "garbage", "talk", "half", "close", "silent"])
def test_a_tunnel_that_was_not_made_means_that_nothing_was_sent(
    mode: str, certificates: Path, tls: ssl.SSLContext
) -> None:
    with ScriptedServer(serve, tls=tls) as wire, ConnectProxy(wire.port, mode) as proxy:
        with session(certificates, proxy=f"http://{proxy.place}") as opened:
            why = opened.deliver(chunk_of("a")).failures[0]
        assert isinstance(why, NotDelivered)
        assert "nothing was sent" in str(why)
        assert (wire.requests, wire.connections) == ([], 0)
        assert proxy.asked() == ["CONNECT bank.invalid:443 HTTP/1.1"]


def test_a_proxy_that_is_not_there_was_sent_nothing(certificates: Path) -> None:
    with session(certificates, proxy="http://127.0.0.1:1") as opened:
        assert isinstance(opened.deliver(chunk_of("a")).failures[0], NotDelivered)


def test_a_tunnel_to_somebody_else_is_refused_by_the_certificate(
    certificates: Path, tls: ssl.SSLContext
) -> None:
    with ScriptedServer(serve, tls=tls) as wire, ConnectProxy(wire.port) as proxy:
        with session(
            certificates, "https://other.invalid/", proxy=f"http://{proxy.place}"
        ) as opened:
            why = opened.deliver(chunk_of("a")).failures[0]
        assert isinstance(why, NotDelivered)
        assert "certificate" in str(why).lower()
        assert wire.requests == []


def test_a_tunnel_that_ends_before_tls_was_sent_nothing(certificates: Path) -> None:
    with (
        ConnectProxy(1, "nowhere") as proxy,
        session(certificates, proxy=f"http://{proxy.place}") as opened,
    ):
        assert isinstance(opened.deliver(chunk_of("a")).failures[0], NotDelivered)


def test_what_breaks_within_the_tunnel_after_the_request_began_is_unknown(
    certificates: Path, tls: ssl.SSLContext
) -> None:
    def hang_up(conversation: Conversation) -> None:
        conversation.request()

    with (
        ScriptedServer(hang_up, tls=tls) as wire,
        ConnectProxy(wire.port) as proxy,
        session(certificates, proxy=f"http://{proxy.place}") as opened,
    ):
        assert isinstance(opened.deliver(chunk_of("a")).failures[0], OutcomeUnknown)
        assert len(wire.requests) == 1


# -- credentials of the proxy

PASSWORD = "p4ss@w/rd"
PAIR = base64.b64encode(f"me:{PASSWORD}".encode()).decode()


@pytest.mark.parametrize("given", ["http://me:p4ss%40w%2Frd@{}", "http://me:${{PROXY_PASS}}@{}"])
def test_credentials_go_to_the_proxy_alone_and_are_shown_nowhere(
    given: str, certificates: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_PASS", PASSWORD)
    with ScriptedServer(serve, tls=tls) as wire, ConnectProxy(wire.port, wanted=PAIR) as proxy:
        with session(certificates, proxy=given.format(proxy.place)) as opened:
            assert opened.deliver(chunk_of("a")).failures == {}
        assert b"Proxy-" not in wire.requests[0]
        assert PAIR.encode() not in wire.requests[0]


def test_a_proxy_that_wants_other_credentials_is_named_without_them(certificates: Path) -> None:
    with ConnectProxy(1, wanted="other") as proxy:
        sink = Http(name="bank", url=BANK, proxy=f"http://me:p4ss%40w@{proxy.place}")
        with session(certificates, proxy=sink.proxy) as opened:
            why: DeliveryError = opened.deliver(chunk_of("a")).failures[0]
        assert isinstance(why, NotDelivered)
        assert f"the proxy {proxy.place} answered CONNECT with 407" in str(why)
        assert "p4ss" not in f"{why}{sink!r}{sink.service!r}{sink.describe()}"
        found = proxy_for(sink.proxy, BANK, "sink")
        assert "p4ss" not in repr(found)


@pytest.mark.parametrize(
    "given",
    [
        "https://me:s3cret@proxy:3128",
        "socks5://proxy:1080",
        "proxy:3128",
        "http://",
        "http://proxy:s3cret",
        "http://proxy:3128/s3cret",
        "http://pro xy:3128",
        "http://proxy\r\nX:3128",
        "",
        7,
    ],
)
def test_what_is_no_proxy_is_refused_at_once_and_not_shown(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"sink 'bank', proxy must be 'env' or") as caught:
        Http(name="bank", url=BANK, proxy=given)
    assert "s3cret" not in str(caught.value)


# -- the environment


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)
    return monkeypatch


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_the_environments_proxy_is_used_when_asked_for(
    name: str, certificates: Path, tls: ssl.SSLContext, bare: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(serve, tls=tls) as wire, ConnectProxy(wire.port) as proxy:
        bare.setenv(name, f"http://{proxy.place}" if name == "HTTPS_PROXY" else proxy.place)
        with session(certificates, proxy="env") as opened:
            assert opened.deliver(chunk_of("a")).failures == {}
        assert proxy.asked() == ["CONNECT bank.invalid:443 HTTP/1.1"]


@pytest.mark.parametrize(
    "names", ["bank.invalid", ".invalid", "*", "a.example,bank.invalid", "bank.invalid:443"]
)
def test_no_proxy_is_honoured(names: str, bare: pytest.MonkeyPatch) -> None:
    bare.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert proxy_for("env", "https://bank.invalid:443", "sink") is not None
    bare.setenv("NO_PROXY", names)
    assert proxy_for("env", "https://bank.invalid:443", "sink") is None
    bare.setenv("NO_PROXY", "another.invalid")
    assert proxy_for("env", "https://bank.invalid:443", "sink") is not None


def test_without_a_proxy_in_the_environment_or_without_tls_calls_go_straight(
    bare: pytest.MonkeyPatch,
) -> None:
    assert proxy_for("env", "https://bank.invalid", "sink") is None
    bare.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert proxy_for("env", "http://bank.invalid", "sink") is None
    assert proxy_for(None, "https://bank.invalid", "sink") is None


def test_a_proxy_of_the_environment_that_is_none_is_named_without_its_secret(
    bare: pytest.MonkeyPatch,
) -> None:
    bare.setenv("HTTPS_PROXY", "https://me:s3cret@proxy:1")
    with pytest.raises(ConfigurationError, match="sink 'bank', proxy must be") as caught:
        Http(name="bank", url=BANK, proxy="env").open(TARGET)
    assert "s3cret" not in str(caught.value)
