"""No URL, however it is written, shows its password: not in a message, a repr, a row or the log."""

from __future__ import annotations

import logging
import string
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.errors import ConfigurationError, SemelError
from semel.events.event import Attempt, Minibatch
from semel.ledger import Ledger
from semel.ledger.keys import make_key
from semel.ledger.store.opening import open_store
from semel.operate.ledger_checks import check_ledger_url
from semel.sinks import Files, Http, Kafka, Postgres, Redis, Target
from semel.sinks.http.templates import UrlTemplate
from semel.sinks.postgres.manifest_loader import PostgresLoad
from semel.sinks.redis.connection import RedisConnection
from semel.urls import conceal, place, redact

MARKS = ("hush", "sesame", "quiet")
"""Every password here begins, goes on and ends with one of these."""

TARGET = Target("pay", "out", Minibatch(1, 0), "0", Attempt(1, 1))


# -- every place that takes a URL: what it shows of it


def ledger(url: str) -> Iterator[str]:
    with closing(open_store(url)) as store:
        yield repr(store)
    if not url.startswith("sqlite"):
        with Ledger(url) as looking:
            yield repr(looking)


def postgres(url: str) -> Iterator[str]:
    sink = Postgres(name="out", url=url, table="t")
    yield from (repr(sink), str(sink.describe()), sink.where, *sink.notes())


def load(url: str) -> Iterator[str]:
    made = PostgresLoad(url=url, table="t")
    yield from (repr(made), made.where)
    yield repr(Files(name="out", url="lake", then=made))


def redis(url: str) -> Iterator[str]:
    sink = Redis(name="out", url=url, key="k", command="SADD", arguments=("{id}",))
    yield from (repr(sink), str(sink.describe()), *sink.notes())
    line = RedisConnection(url, 0.5)
    yield from (repr(line), line.shown)


def http(url: str) -> Iterator[str]:
    sink = Http(name="out", url=url)
    yield from (repr(sink), str(sink.describe()), *sink.notes())
    template = UrlTemplate.of(url, "url")
    yield from (repr(template), template.shown)
    yield repr(Http(name="out", url="http://127.0.0.1:1/", probe=f"{url}/{{semel.key}}"))


def files(url: str) -> Iterator[str]:
    if "://" not in url:
        return  # a path has no password
    sink = Files(name="out", url=url)
    yield from (repr(sink), str(sink.describe()), sink.where, sink.locate(TARGET), *sink.notes())


def kafka(url: str) -> Iterator[str]:
    sink = Kafka(name="out", servers=url, topic="t")
    yield from (repr(sink), str(sink.describe()), sink.where(TARGET), *sink.notes())


PLACES: dict[str, tuple[Callable[[str], Iterator[str]], tuple[str, ...]]] = {
    "ledger": (ledger, ("postgresql", "postgres", "mysql")),
    "postgres": (postgres, ("postgresql", "postgres", "pg")),
    "load": (load, ("postgresql", "postgres", "jdbc:postgresql")),
    "redis": (redis, ("redis", "rediss", "unix", "valkey")),
    "http": (http, ("http", "https", "ftp")),
    "files": (files, ("s3", "hdfs", "viewfs", "abfs")),
    "kafka": (kafka, ("SASL_SSL", "kafka", "")),
}


@contextmanager
def logged() -> Iterator[list[str]]:
    """What the log says meanwhile, at every level."""
    said: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listening, log = Listening(), logging.getLogger()
    level = log.level
    log.addHandler(listening)
    log.setLevel(logging.DEBUG)
    try:
        yield said
    finally:
        log.removeHandler(listening)
        log.setLevel(level)


def shown_by(act: Callable[[], Iterator[str]]) -> str:
    """Everything that people can read when it is done; an error has to be one of semel's."""
    shown: list[str] = []
    with logged() as said:
        try:
            shown.extend(act())
        except SemelError as error:
            shown += [repr(error), "".join(traceback.format_exception(error))]
    return "\n".join([*shown, *said])


def assert_hidden(text: str) -> None:
    assert not [mark for mark in MARKS if mark in text], text


# -- URLs as they should not be written


JUNK = st.text(alphabet=string.punctuation + " \n\r\t\x00é\ud800％01", max_size=5)


@st.composite
def passwords(draw: st.DrawFn) -> str:
    return MARKS[0] + draw(JUNK) + MARKS[1] + draw(JUNK) + MARKS[2]


@st.composite
def hostile(draw: st.DrawFn, schemes: tuple[str, ...]) -> str:
    """A URL with a password in one of the places where people put it, written as it comes."""
    scheme, password = draw(st.sampled_from(schemes)), draw(passwords())
    head = f"{scheme}://" if scheme else ""
    user = draw(st.sampled_from(["", "u", "a.b", "12"])) + draw(JUNK)
    host = draw(st.sampled_from(["h", "h:1", "127.0.0.1:1", "[::1]:1", "h:1,g:2", ""])) + draw(JUNK)
    path = draw(st.sampled_from(["", "/", "/d", "/0", "/a/b"])) + draw(JUNK)
    option = draw(
        st.sampled_from(
            ["password", "p%61ssword", "sslpassword", "oauth_client_secret", "scram_client_key",
             "secret_key", "PASSWORD", "x"]
        )
    )  # fmt: skip
    query = draw(st.sampled_from(["", "?sslmode=disable", "?db=1", "?x=1"])) + draw(JUNK)
    return draw(
        st.sampled_from([
            f"{head}{user}:{password}@{host}{path}{query}",
            f"{head}:{password}@{host}{path}{query}",
            f"{head}u:{password.replace(chr(64), '')}",  # with an @ it would be whole
            f"{head}{host}{path}?{option}={password}",
            f"{head}{host}{path}?x=1{query}&{option}={password}",
            f"{user}:{password}@{head}{host}{path}",
            f"host={host} password={password}",
        ])
    )  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_a_hostile_url_is_refused_or_accepted_and_never_shown(name: str) -> None:
    takes, schemes = PLACES[name]

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(hostile(schemes))
    def shows_nothing(url: str) -> None:
        assert_hidden(shown_by(lambda: takes(url)))

    shows_nothing()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(hostile(("postgresql", "redis", "http", "s3", "sqlite", "x")))
@example("postgresql://u:12/hush@h/d")
@example("https://u:12/hush@h/d")
@example("postgresql://u:hush\n@h/d")
@example("postgresql://u:hush")
@example("postgres:hush")
@example("postgresql://h/d?oauth_client_secret=hush")
@example("postgresql://h/d?scram_client_key=hush")
@example("postgresql://h/d?p%61ssword=hush")
def test_what_is_redacted_has_no_password(url: str) -> None:
    if not url.startswith("sqlite:///"):
        assert_hidden(redact(url))
    if url.startswith(("http", "s3")):
        assert_hidden(place(url))


REACHED: dict[str, Callable[[str], Iterator[str]]] = {
    "postgresql://{}127.0.0.1:1/d{}": lambda url: _asked(
        lambda: open_store(url).read([make_key("t", "a")])
    ),
    "postgresql://{}127.0.0.1:1/e{}": lambda url: (
        f"{each.found} {each.do}" for each in check_ledger_url(url)
    ),
    "redis://{}127.0.0.1:1/0{}": lambda url: _asked(lambda: RedisConnection(url, 0.5).ask(b"PING")),
}


def _asked(act: Callable[[], object]) -> Iterator[str]:
    yield repr(act())


@pytest.mark.parametrize("form", REACHED)
def test_a_server_that_cannot_be_reached_is_named_without_the_password(form: str) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(passwords(), st.sampled_from(["user", "option", "encoded", "encoded option"]))
    def shows_nothing(password: str, how: str) -> None:
        written = quote(password, safe="", errors="replace") if "encoded" in how else password
        user = f"u:{written}@" if how in ("user", "encoded") else ""
        option = f"?password={written}" if "option" in how else ""
        assert_hidden(shown_by(lambda: REACHED[form](form.format(user, option))))

    shows_nothing()


# -- what is refused, by its parts


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:se/same@h/d",
        "postgresql://u:12/sesame@h/d",
        "postgresql://h:1?password=hush@sesame",
        "postgresql://u:hush@sesame@h/d",
        "postgresql://u:sesame@h:port/d",
        "postgresql://u:sesame@h/d@e",
        "postgresql://u:sesame@h/d\n",
        "postgresql://u:hush sesame@h/d",
        "postgresql://h/d?port=sesame",
    ],
)
def test_a_url_of_postgresql_that_cannot_be_what_was_meant_is_refused(url: str) -> None:
    for takes in (ledger, postgres, load):
        with pytest.raises(ConfigurationError, match="%40") as refused:
            list(takes(url))
        assert "u:" not in str(refused.value)
        assert_hidden(str(refused.value))


@pytest.mark.parametrize(
    "url",
    ["redis://u:se/same@h/0", "redis://u:12/sesame@h/0", "redis://u:1?sesame@h", "redis://h:sesame",
     "redis://u:hush\nsesame@h/0", "unix://u:12/sesame@/tmp/redis.sock"],
)  # fmt: skip
def test_a_url_of_redis_that_cannot_be_what_was_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="%40") as refused:
        list(redis(url))
    assert_hidden(str(refused.value))


def test_an_option_of_a_redis_url_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigurationError, match=r"redis://h:1/0\?sslmode=.*: unknown option 'sslmode'"
    ):
        list(redis("redis://h:1/0?sslmode=require"))
    for option in ("socket_keepalive=yes", "client_name=pay", "db=3"):
        list(redis(f"redis://h:1/0?{option}"))
    list(redis("rediss://h:1/0?ssl_cert_reqs=none"))
    list(redis("unix:///tmp/a@b.sock?db=1"))


@pytest.mark.parametrize(
    "servers", ["u:sesame@h:9092", "h:9092,u:sesame@g:9092", "h:sesame", "h h"]
)
def test_servers_of_kafka_hold_no_password(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.password") as refused:
        list(kafka(servers))
    assert_hidden(str(refused.value))
    for good in ("h", "h:9092", "h:9092, g_1.x:9092", "SASL_SSL://h:9092", "[::1]:9092"):
        list(kafka(good))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://api/users/@me/{id}?key=hush", "https://api/users/@me/{id}"),
        ("https://u:12/sesame@h", "https://***"),
        ("s3://key:hush@bucket/a b/c?region=x", "s3://bucket/a b/c"),
        ("s3://bucket/a b/c@d?region=x", "s3://bucket/a b/c@d"),
        ("s3://key:hush@sesame/quiet@bucket/a", "s3://***"),
        ("hdfs://name:9000/lake", "hdfs://name:9000/lake"),
        ("file:///a/b", "file:///a/b"),
        ("/a/b@c", "/a/b@c"),
    ],
)
def test_a_place_is_a_url_without_user_password_and_query(url: str, shown: str) -> None:
    assert place(url) == shown


def test_the_longest_of_several_secrets_is_concealed_first() -> None:
    assert conceal("sesame opens sesame2", ["sesame", "sesame2", ""]) == "*** opens ***"
