"""The URL of a Redis: what it says is used, and what is not understood is refused at once."""

from __future__ import annotations

import sys

import pytest

from semel.errors import ConfigurationError, MissingExtra
from semel.sinks.redis import Redis
from semel.verify.servers.redis import RedisServer
from support.sinks.redis_pipeline import listed, lists, target, world_with


def sink_at(url: str) -> Redis:
    return Redis(name="out", url=url, command="DEL", key="k")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:hush@h/0?sockettimeout=5", "unknown option 'sockettimeout'"),
        ("redis://:hush@h/0?max_connections=5", "unknown option 'max_connections'"),
        ("redis://:hush@h/0?Client_Name=hush", "unknown option 'Client_Name'"),
        ("redis://:hush@h/0?a=hush&b=hush", "unknown options 'a', 'b'"),
        ("unix:///run/redis.sock?password=hush&host=h", "unknown option 'host'"),
        ("redis://:hush@h/0?ssl_cert_reqs=none", "rediss://"),
        ("rediss://:hush@h/0?ssl_cert_reqs=hush", "an option in it"),
        ("redis://:hush@h/0?parser_class=hush", "an option in it"),
        ("redis://:hush@h/0?self=hush", "unknown option 'self'"),
        ("redis://:hush@h/prod", "'prod' is not the number of a database"),
        ("redis://:hush@h/1/2", "'1/2' is not the number of a database"),
        ("redis://:hush@h/-1", "'-1' is not the number of a database"),
        ("redis://:hush@h/0?db=two", "is not the URL of a Redis"),
        ("redis://:hush@h/0?socket_timeout=long", "is not the URL of a Redis"),
    ],
)
def test_a_url_that_says_what_nobody_understands_is_refused_when_it_is_written(
    url: str, said: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        sink_at(url)
    assert said in str(error.value)
    assert "sink 'out'" in str(error.value)


def test_an_option_is_refused_without_its_value() -> None:
    with pytest.raises(ConfigurationError) as error:
        sink_at("redis://:secret@h/0?nosuch=1")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h/",
        "redis://u:p%2F@h:1/15?client_name=pay",
        "redis://h?db=3&socket_keepalive=yes&socket_timeout=5&decode_responses=yes",
        "rediss://h/0?ssl_cert_reqs=none&ssl_ca_certs=/x&ssl_check_hostname=no",
        "unix://u:p@/run/redis.sock?db=1",
    ],
)
def test_a_url_that_redis_understands_is_taken(url: str) -> None:
    assert sink_at(url).url == url


def test_an_option_is_used(redis: RedisServer) -> None:
    world = world_with(lists(redis, url=f"{redis.url()}?client_name=pay&socket_keepalive=yes"))
    world.minibatch(0, "a1 b2")
    assert listed(redis) == "a:1 b:2"


def test_without_the_library_a_url_is_looked_at_when_a_session_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "redis.connection", None)
    sink = sink_at("redis://h/0?nosuch=1")
    with pytest.raises(MissingExtra):
        sink.open(target())
