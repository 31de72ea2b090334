"""A pipeline file is read with every mistake named: its line, what was found, what was expected."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from semel.errors import ConfigurationError
from semel.events import Counter, Given, Position
from semel.pipeline import json_schema, read_file
from semel.pipeline.build import inbox_options
from semel.pipeline.sink_settings import AUTH, BUILT_IN, KINDS, LEFT_OUT, LOADER, sink_class
from semel.pipeline.starter import write_starter
from semel.protocol import Capability, OnDoubt, OnReject
from semel.sinks import Basic, Files, Function, Http, Kafka, Postgres, PostgresLoad, Redis, Retry
from support.pipeline_files import FULL, SEVERAL, Build, Wrong

SMALL = """\
[pipeline]
name = "p"
checkpoint = "c"
[source]
format = "json"
[identity]
entity = "customer"
event = "payment_id"
[[sinks]]
type = "http"
url = "https://service.example/"
"""


def test_a_file_with_every_section_becomes_the_arguments_of_deliver(
    built: Build, folder: Path
) -> None:
    pipeline = built(FULL)
    words = pipeline.words()
    http, files, kafka = words.pop("to")
    assert words == {
        "name": "charges",
        "entity": "customer",
        "event": ("payment_id", "part"),
        "identity": None,
        "order_by": "at",
        "increasing": False,
        "ledger": f"sqlite:///{folder}/charges.db",
        "partitions": 4,
        "order": True,
        "accept_gap": False,
        "drop_repeats": False,
        "partition_by": None,
        "remember_s": 12 * 3600.0,
    }
    assert isinstance(http, Http)
    assert http.auth == Basic("u", "some-password")
    assert (http.window, http.timeout_s, http.on_doubt) == (2, 4.5, OnDoubt.HOLD)
    assert http.retry == Retry(first_s=0.5, for_s=10)
    assert http.body == {"customer": "{customer}", "parts": ["{part}", 1, True]}
    assert isinstance(files, Files)
    assert (files.name, files.url) == ("copy", str(folder / "out"))
    assert isinstance(files.then, PostgresLoad)
    assert isinstance(kafka, Kafka)
    assert (kafka.name, kafka.stamps) == ("kafka", ("osn", "event"))
    assert pipeline.checkpoint == str(folder / "checkpoints/charges")
    sections = pipeline.file.sections
    assert sections.source is not None
    assert sections.source.options == {
        "path": "payments",
        "maxFilesPerTrigger": "2",
        "multiLine": "false",
    }
    assert sections.trigger.every == 0.5
    assert sections.spark.settings["spark.ui.enabled"] == "false"
    assert list(sections.transform.views) == ["positive", "large"]  # type: ignore[union-attr]


def test_a_sink_of_ones_own_is_a_function_a_decorated_one_or_an_object(built: Build) -> None:
    pipeline = built(SEVERAL)
    redis, postgres, charge, other, made, own = pipeline.sinks
    assert isinstance(redis, Redis)
    assert (redis.arguments, redis.on_reject) == (("amount", "1"), OnReject.BLOCK)
    assert isinstance(postgres, Postgres)
    assert isinstance(charge, Function)
    assert (charge.name, charge.window, charge.on_doubt) == ("charge", 3, OnDoubt.PROBE)
    assert isinstance(other, Function)
    assert (other.name, other.window) == ("other", 2)
    assert (made.name, made.capability) == ("made", Capability.OPAQUE)
    assert (own.name, own.place, own.lease_s) == ("Own", "here", 5.0)  # type: ignore[attr-defined]
    assert pipeline.partition_by is not None
    assert pipeline.partition_by.partitions == 3
    assert pipeline.function is not None


def test_every_setting_of_every_built_in_sink_has_a_kind() -> None:
    for kind in [*BUILT_IN, LOADER]:
        for each in dataclasses.fields(sink_class(kind)):
            assert each.name in LEFT_OUT or str(each.type) in KINDS, (kind, each.name, each.type)
    schema = json_schema()["$defs"]
    for kind in BUILT_IN:
        wanted = {each.name for each in dataclasses.fields(sink_class(kind))} - LEFT_OUT
        assert set(schema[f"{kind.title()}Sink"]["properties"]) == wanted | {"type", "name"}
        for name, setting in schema[f"{kind.title()}Sink"]["properties"].items():
            assert name == "type" or setting["description"], f"{kind}.{name}"


def test_all_mistakes_of_a_file_are_reported_at_once_with_their_lines(wrong: Wrong) -> None:
    text = """\
[pipelin]
name = "x"
[pipeline]
nme = "p"
partitions = 0
latency = "soon"
[source]
format = ["json"]
options.path = 1979-05-27
[transform]
sql = "select 1"
python = "m:f"
[[sinks]]
type = "htp"
[[sinks]]
type = "http"
url = 5
windw = 1
headers = { A = 1 }
retry = { for = 3 }
on_doubt = "wait"
auth = { type = "bearer", tokn = "x" }
[[sinks]]
url = "x"
"""
    assert wrong(text) == [
        "p.toml:1:1: unknown key 'pipelin' in the file; did you mean 'pipeline'?",
        "p.toml:3:1: [pipeline] needs checkpoint",
        "p.toml:3:1: [pipeline] needs name",
        "p.toml:4:1: unknown key 'nme' in [pipeline]; did you mean 'name'?",
        "p.toml:5:14: partitions: expected an integer of at least 1, found the number 0",
        (
            'p.toml:6:11: latency: expected a duration such as "5s" (ms, s, min, h or d), '
            "or a number of seconds, found the text 'soon'"
        ),
        "p.toml:8:10: format: expected a non-empty text, found a list",
        (
            "p.toml:9:16: path: expected a text, a number, true or false, found the date or time "
            "1979-05-27"
        ),
        "p.toml:10:1: transform needs either sql or python",
        (
            "p.toml:14:8: unknown type of a sink 'htp'; did you mean 'http'? (a sink of your "
            "own is module:object)"
        ),
        "p.toml:17:7: url: expected a text, found the number 5",
        "p.toml:18:1: unknown key 'windw' in [[sinks]]; did you mean 'window'?",
        "p.toml:19:17: A: expected a text, found the number 1",
        "p.toml:20:17: unknown key 'for' in retry; did you mean 'for_s'?",
        (
            "p.toml:21:12: on_doubt: expected 'hold', 'resend', 'skip', 'stop' or "
            "\"module:function\", found the text 'wait'"
        ),
        "p.toml:22:34: unknown key 'tokn' in auth of type 'bearer'; did you mean 'token'?",
        "p.toml:23:1: [[sinks]] needs type: http, postgres, redis, kafka, files or module:object",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"https://service.example/"', '"ftp://x"', "p.toml:11:1: sink 'http', url must begin"),
        ('url = "https', 'timeout_s = 100\nurl = "https', "p.toml:11:1: sink 'http': timeout_s"),
        ('event = "payment_id"\n', "", "p.toml:6:1: given identity needs both|nothing says which"),
        ('entity = "customer"\n', "", "p.toml:6:1: given identity needs both"),
        ('"http"', '"fuzz_module:nothing"', "p.toml:10:8: the module 'fuzz_module' has no"),
        ('"http"', '"no_module:x"', "p.toml:10:8: cannot import 'no_module': ModuleNotFound"),
        ('"http"', '"fuzz_module:number"', "p.toml:10:8: expected a sink, a class of sinks or a"),
        ('"http"', '"pathlib:Path"', "p.toml:10:8: expected a sink.* another class"),
        ('"http"', '"fuzz_module:charge"', "p.toml:11:1: unknown key 'url' in .*; use|did you"),
        ("[identity]", "[trigger]\nevery = -1\n[identity]", "p.toml:7:9: every: expected a dura"),
        ('format = "json"', 'format = "json"\n[sources.a]\nformat = "x"', "either .source. or"),
        ("[source]", "[sources.a]", "several sources need .transform."),
        ('"http"', '"http"\n[[sinks]]\ntype = "http"', "two sinks are called 'http'|needs url"),
        ('name = "p"', 'name = ""', "p.toml:2:8: name: expected a non-empty text, found the text"),
        ('name = "p"', 'name = "p"\nname = "q"', "p.toml:3:11: this is not TOML: cannot overwrite"),
        ('name = "p"', "name = p", "p.toml:2:8: this is not TOML: invalid value"),
        ('checkpoint = "c"', 'checkpoint = "c\n"', "p.toml:3:16: this is not TOML: illegal char"),
        ("[[sinks]]", "[sinks]", r"sinks: expected \[\[sinks\]\], a table for each sink, found"),
        (
            'checkpoint = "c"',
            'checkpoint = "c"\npartition_by = { range = [2, 1] }',
            "p.toml:4:1: .*bounds must increase|p.toml:4:18: .*bounds must increase",
        ),
        ('checkpoint = "c"', 'checkpoint = "c"\nlatency = "5s"', "1:1: latency needs application"),
        ('"http"', '"fuzz_module:Own"', r"9:1: .* needs place"),
        ('format = "json"', 'format = "fuzz_module:number"', "not a class of a Python data source"),
    ],
)
def test_a_mistake_is_reported_where_it_is(wrong: Wrong, old: str, new: str, problem: str) -> None:
    assert SMALL.count(old) == 1
    found = wrong(SMALL.replace(old, new))
    assert any(re.search(problem, each) for each in found), found
    assert not any("Traceback" in each for each in found)


def test_what_cannot_be_read_is_reported_with_the_file(folder: Path) -> None:
    path = folder / "x.toml"
    cases = {
        b"a = 1\nb = \xff\n": r"x.toml:2:5: expected UTF-8, found the byte 0xff",
        b"": r"x.toml:1:1: the file needs \[\[sinks\]\]",
        b"x = " + b"[" * 5000: "x.toml:1:55: lists or tables are nested more than 50 deep",
        b"a" * 1_000_001: "has more than 1000000 bytes",
        b"a = 1\n" * 2: "x.toml:2:6: this is not TOML: cannot overwrite",
        b"[pipeline": "x.toml:1:10: this is not TOML",
    }
    for raw, expected in cases.items():
        path.write_bytes(raw)
        with pytest.raises(ConfigurationError, match=expected):
            read_file(path)
    with pytest.raises(
        ConfigurationError, match=r"none.toml:1:1: there is no such file; `semel init "
    ):
        read_file(folder / "none.toml")
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        read_file(folder)
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert read_file(path).sections.pipeline.name == "p"


def test_the_identity_is_known_without_spark_where_the_file_implies_it(
    built: Build, wrong: Wrong
) -> None:
    given = built(SMALL).specification()
    assert given.identity == Given("customer", ("payment_id",))
    counted = built(SEVERAL).specification()
    assert counted.identity == Counter("value")
    kafka = SMALL.replace('"json"', '"kafka"').replace('entity = "customer"\n', "")
    position = built(kafka.replace('event = "payment_id"\n', "")).specification()
    assert position.identity == Position()
    inbox = kafka.replace('"kafka"', '"semel.inbox"').replace('event = "payment_id"\n', "")
    assert built(inbox).specification().identity == Position()
    text = SMALL.replace('entity = "customer"\nevent = "payment_id"', 'identity = "counter"')
    assert 'p.toml:6:1: identity="counter" counts the events' in wrong(text)[0]
    unknown = kafka.replace('"kafka"', '"delta-sharing"').replace('event = "payment_id"\n', "")
    with pytest.raises(ConfigurationError, match="depends on the columns of the query"):
        built(unknown).specification()


def test_an_inbox_is_in_the_ledger_of_the_pipeline_which_is_its_reader(folder: Path) -> None:
    given = {"stream": "orders"}
    ledger = "postgresql://semel@db/charges"
    assert inbox_options(given, folder, "charges", ledger) == {
        "stream": "orders",
        "ledger": ledger,
        "reader": "charges",
    }
    named = {"stream": "orders", "Ledger": "sqlite:///orders.db", "Reader": "other"}
    assert inbox_options(named, folder, "charges", ledger) == {
        "stream": "orders",
        "Ledger": f"sqlite:///{folder}/orders.db",
        "Reader": "other",
    }
    assert "reader" not in inbox_options(given, folder, "c" * 101, ledger), "it cannot be one"


def test_the_starter_is_valid_and_nothing_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "new" / "charges.toml"
    assert write_starter(file) == [file, file.parent / "payments"]
    assert read_file(file, {}).sections.pipeline.name == "charges"
    assert len(list((file.parent / "payments").iterdir())) == 4
    with pytest.raises(ConfigurationError, match="exists, and is not overwritten"):
        write_starter(file)
    assert write_starter(file.with_name("other.toml")) == [file.with_name("other.toml")]
    with pytest.raises(ConfigurationError, match=r"ends with \.toml"):
        write_starter(tmp_path / "x.json")


def test_every_kind_of_credentials_can_be_written() -> None:
    assert set(AUTH) == {"bearer", "basic", "certificate"}
