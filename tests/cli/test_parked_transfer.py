"""`semel parked export` and `import`: payloads are edited and sent under the old identity."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.events.digests import digest
from semel.events.encoding import encode_value
from semel.ledger import Ledger, payloads
from semel.ledger.rows import ParkedRow
from semel.ledger.store.commit import Put
from semel.ledger.verbs.parked import read_parked
from semel.operate import export_parked, import_parked
from semel.operate.bulk.transfer import WrongLines
from semel.protocol import OnDoubt, OnReject, ParkedState
from support.command_line import pipeline_at, read_json, refused, semel
from support.destinations import Post, lost
from support.pipeline import (
    COUNTER,
    GIVEN,
    KINDS,
    ORDERED_POSITION,
    World,
    crash_everywhere,
    world_like,
    world_of,
)

Out = pytest.CaptureFixture[str]
WHY = ("--reason", "the amount was wrong", "--by", "ann")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Event 1 of a is in doubt, 3 of a waits behind it; 2 of b and 4 of d are rejected."""
    made = pipeline_at(tmp_path / "ledger.db")
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    made.out.refuses.update({"b2", "d4"})
    made.out.plan(lost)
    made.minibatch(0, "a1 b2 a3=8 d4 e5")
    made.out.refuses.clear()
    return made


def exported(capsys: Out, *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    status, out, err = semel(capsys, "parked", "export", *arguments)
    assert (status, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def saved(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return str(path)


def edited(lines: list[dict[str, Any]], handle: str, **columns: Any) -> list[dict[str, Any]]:
    """Return the lines with other values in the payload of one event."""
    [line] = [each for each in lines if each["event"] == handle]
    line["payload"].update(columns)
    return lines


def test_a_line_has_names_state_types_and_payload(world: World, capsys: Out) -> None:
    del world
    lines = exported(capsys)
    assert [each["event"] for each in lines] == [
        "pay/out/a/1",
        "pay/out/a/3",
        "pay/out/b/2",
        "pay/out/d/4",
    ]
    assert lines[0]["may_have_arrived"] is True
    assert lines[1]["state"] == "waiting"
    assert lines[1]["payload"]["v"] == 8
    assert lines[1]["columns"]["v"] == "int64"
    assert [each["event"] for each in exported(capsys, "pay", "--where", "state=rejected")] == [
        "pay/out/b/2",
        "pay/out/d/4",
    ]
    assert exported(capsys, "--where", "entity=zz") == []
    assert "there is no pipeline 'no'" in refused(capsys, "parked", "export", "no")


def test_an_edited_dead_letter_is_sent_again_with_the_same_identity(
    world: World, tmp_path: Path, capsys: Out
) -> None:
    file = saved(tmp_path / "f", edited(exported(capsys), "pay/out/b/2", v=77))
    before = {row.event: row for _, row in world.parked_rows()}
    told = read_json(capsys, "parked", "import", file, "--dry-run", *WHY)
    assert (told["lines"], told["edited"], told["unchanged"]) == (4, 1, 3)
    assert told["dry_run"] is True
    assert {row.event: row for _, row in world.parked_rows()} == before
    told = read_json(capsys, "parked", "import", file, *WHY)
    assert (told["edited"], told["released"], told["examples"]) == (1, 1, ["pay/out/b/2"])
    world.driver.drain()
    [sent] = [each for each in world.out.effects if each.event == 2]
    assert (sent.entity, sent.key, sent.osn, sent.value["v"]) == ("b", "pay/out/b/2", 2, 77)
    row = {row.event: row for _, row in world.parked_rows()}[2]
    assert row.state is ParkedState.DELIVERED
    assert row.edited is not None
    assert (row.edited.by, row.edited.reason) == ("ann", "the amount was wrong")
    assert row.edited.before["v"] == 0
    told = semel(capsys, "parked", "show", "b/2")[1]
    assert "edited by" in told
    assert "the amount was wrong" in told
    assert "payload before it was edited:" in told
    assert "b4" not in world.out.seen


def test_importing_the_same_file_again_changes_nothing(
    world: World, tmp_path: Path, capsys: Out
) -> None:
    del world
    file = saved(tmp_path / "f", edited(exported(capsys), "pay/out/b/2", v=77))
    assert read_json(capsys, "parked", "import", file, *WHY)["edited"] == 1
    told = read_json(capsys, "parked", "import", file, *WHY)
    assert (told["edited"], told["unchanged"], told["changed_meanwhile"]) == (0, 4, 0)


def test_an_event_in_doubt_is_edited_only_after_a_person_released_it(
    world: World, tmp_path: Path, capsys: Out
) -> None:
    file = saved(tmp_path / "f", edited(exported(capsys), "pay/out/a/1", v=5))
    status, out, err = semel(capsys, "parked", "import", file, *WHY)
    assert (status, out) == (2, "")
    assert "1 line cannot be imported, so nothing was" in err
    assert "line 1: event pay/out/a/1 is in doubt: it may have arrived" in err
    assert "semel resolve EVENT resend" in err
    read_json(capsys, "resolve", "a/1", "resend", "--reason", "not there", "--by", "eve")
    file = saved(tmp_path / "f", edited(exported(capsys), "pay/out/a/1", v=5))
    told = read_json(capsys, "parked", "import", file, *WHY)
    assert (told["edited"], told["released"]) == (1, 0)
    world.clock.move(60.0)
    world.driver.drain()
    assert [each.value["v"] for each in world.out.effects if each.event == 1] == [0, 5]
    row = {row.event: row for _, row in world.parked_rows()}[1]
    assert (row.by, row.reason) == ("eve", "not there"), "who released it is kept"


def test_an_event_that_a_policy_sends_again_may_have_arrived_and_is_not_edited(
    tmp_path: Path,
) -> None:
    """A person released it, its call was lost, and on_doubt="resend" sends it once more."""
    world = world_of(Post(), on_doubt=OnDoubt.RESEND, lease_s=0.0, deadline_s=0.0)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.out.plan(lost)
    world.driver.drain()
    [(_, row)] = world.parked_rows()
    assert (row.state, row.by, row.unsure) == (ParkedState.RESEND, "ann", True)
    with pytest.raises(WrongLines, match="is resend, and it may have arrived"):
        edit(world, tmp_path, "a", v=1)
    world.resolve("a1", "discarded")
    [(_, row)] = world.parked_rows()
    assert not row.unsure


def test_an_event_that_waits_is_edited_and_goes_on_waiting(
    world: World, tmp_path: Path, capsys: Out
) -> None:
    file = saved(tmp_path / "f", edited(exported(capsys), "pay/out/a/3", v=9))
    told = read_json(capsys, "parked", "import", file, *WHY)
    assert (told["edited"], told["released"]) == (1, 0)
    assert "a3 waiting" in world.parked()
    world.resolve("a1", "delivered")
    world.driver.drain()
    assert [each.value["v"] for each in world.out.effects if each.event == 3] == [9]


def test_what_was_changed_since_it_was_exported_is_refused(
    world: World, tmp_path: Path, capsys: Out
) -> None:
    lines = exported(capsys)
    file = saved(tmp_path / "f", edited(lines, "pay/out/b/2", v=77))
    read_json(capsys, "parked", "import", file, *WHY)
    other = saved(tmp_path / "g", edited(lines, "pay/out/b/2", v=78))
    err = semel(capsys, "parked", "import", other, *WHY)[2]
    assert "line 3: event pay/out/b/2 was changed in the ledger since it was exported" in err
    world.driver.drain()
    [line] = exported(capsys, "--where", "entity=b")
    late = saved(tmp_path / "h", edited([line], "pay/out/b/2", v=79))
    assert "is delivered" in semel(capsys, "parked", "import", late, *WHY)[2]
    assert world.out.seen.split().count("b2") == 1


def wrong_lines(lines: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return broken files, and what is said of each."""
    good = json.dumps(lines[2])

    def made(**changes: Any) -> str:
        return json.dumps({**lines[2], **changes})

    payload = lines[2]["payload"]
    less = {name: each for name, each in payload.items() if name != "v"}
    return {
        "not JSON": (good[:-1], "line 1: it is not JSON: Expecting ',' delimiter (character"),
        "a list": ("[1]", "line 1: it is not a JSON object"),
        "NaN": (good.replace('"v": 0', '"v": NaN'), 'NaN is not JSON; write {"$float": "nan"}'),
        "no key": (made(key=None), "the field 'key' is not the key of a parked event"),
        "another key": (made(key="x"), "the field 'key' is not the key of a parked event"),
        "a missing field": (json.dumps({"key": "x"}), "the field 'version' is missing"),
        "not parked": (
            made(key=lines[2]["key"].replace("/b/", "/zz/")),
            "event pay/out/zz/2 is not parked in this ledger",
        ),
        "a column less": (made(payload=less), "column 'v' is missing; write null"),
        "a column more": (made(payload={**payload, "w": 1}), "it has no column 'w'"),
        "another type": (
            made(payload={**payload, "v": "12"}),
            "column 'v' is int64, and '12' does not fit",
        ),
        "a truth": (made(payload={**payload, "v": True}), "and True does not fit"),
        "a fraction": (made(payload={**payload, "v": 1.5}), "and 1.5 does not fit"),
        "too large": (
            made(payload={**payload, "v": {"$int": "9223372036854775808"}}),
            "column 'v' is int64, and 9223372036854775808 does not fit",
        ),
        "a wrong tag": (
            made(payload={**payload, "v": {"$decimal": "x"}}),
            "column 'v' cannot be read (InvalidOperation)",
        ),
        "an unknown tag": (
            made(payload={**payload, "v": {"$x": "x"}}),
            "column 'v' cannot be read (KeyError)",
        ),
        "its entity": (
            made(payload={**payload, "c": "z", "v": 1}),
            "column 'c' is part of the event's identity and must stay 'b'",
        ),
        "its id": (
            made(payload={**payload, "id": 3}),
            "column 'id' is part of the event's identity",
        ),
        "twice": (f"{good}\n{good}", "line 2: event pay/out/b/2 is in line 1 already"),
        "a payload that is a text": (made(payload="x"), "must be an object of columns"),
        "deep": ("[" * 100_000, "line 1: "),
        "a deep value": (
            good.replace('"v": 0', f'"v": {"[" * 900}{"]" * 900}'),
            "column 'v' cannot be read (RecursionError)",
        ),
    }


def test_a_file_with_a_mistake_is_refused_as_a_whole_with_the_line(
    world: World, tmp_path: Path, capsys: Out
) -> None:
    lines = exported(capsys)
    rows = world.parked_rows()
    fine = json.dumps(
        edited([dict(lines[3])], "pay/out/d/4")[0] | {"payload": {**lines[3]["payload"], "v": 6}}
    )
    for what, (text, says) in wrong_lines(lines).items():
        (tmp_path / "f").write_text(f"{text}\n{fine}\n")
        status, out, err = semel(capsys, "parked", "import", str(tmp_path / "f"), *WHY)
        assert (status, out) == (2, ""), what
        assert says in err, what
        assert "cannot be imported, so nothing was" in err, what
        assert "Traceback" not in err, what
        assert world.parked_rows() == rows, what
    (tmp_path / "f").write_text(f"{fine}\n")
    assert read_json(capsys, "parked", "import", str(tmp_path / "f"), *WHY)["edited"] == 1


def test_files_of_bytes_of_blank_lines_and_of_nothing_are_read_as_they_are(
    world: World, tmp_path: Path, capsys: Out
) -> None:
    del world
    lines = exported(capsys)
    file = tmp_path / "f"
    file.write_bytes(b"\xff\xfe\n")
    assert (
        "line 1: it is not UTF-8 (byte 1)" in semel(capsys, "parked", "import", str(file), *WHY)[2]
    )
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(lines[0]).encode() + b"\r\n\r\n")
    assert read_json(capsys, "parked", "import", str(file), *WHY)["unchanged"] == 1
    file.write_bytes(b"")
    assert read_json(capsys, "parked", "import", str(file), *WHY)["lines"] == 0
    assert "No such file" in refused(capsys, "parked", "import", str(tmp_path / "no"), *WHY)
    assert "empty" in refused(capsys, "parked", "import", str(file), "--reason", " ")


def test_many_mistakes_are_listed_up_to_a_limit(world: World, tmp_path: Path, capsys: Out) -> None:
    del world
    (tmp_path / "f").write_text("x\n" * 250)
    err = semel(capsys, "parked", "import", str(tmp_path / "f"), *WHY)[2].splitlines()
    assert "250 lines cannot be imported" in err[0]
    assert len(err) == 12
    assert err[-1] == "semel: ... and 240 more lines"


# -- replays


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "batches" not in kind])
def test_a_replay_of_its_minibatch_neither_diverges_nor_sends_an_edited_event_again(
    kind: str, tmp_path: Path
) -> None:
    world = world_like(kind, GIVEN, chunk_rows=1, on_reject=OnReject.PARK)
    world.out.refuses.add("b2")
    world.minibatch(0, "a1 b2 c3")
    world.out.refuses.clear()
    edit(world, tmp_path, "b", v=77)
    for _ in range(2):
        world.start()
        world.minibatch(0, "a1 b2 c3")  # counted and compared
    world.minibatch(1, "d4")
    world.driver.drain()
    world.start()
    world.minibatch(1, "d4")
    assert sorted(world.out.seen.split()) == ["a1", "b2", "c3", "d4"]
    [sent] = [each for each in world.out.effects if each.event == 2]
    assert sent.value["v"] == 77


@pytest.mark.parametrize("when", ["before it was sent", "after it was sent"])
def test_a_lost_checkpoint_does_not_bring_back_what_was_edited(when: str, tmp_path: Path) -> None:
    world = world_of(Post())
    world.out.refuses.add("b2")
    world.minibatch(0, "a1 b2 c3")
    world.out.refuses.clear()
    edit(world, tmp_path, "b", v=77)
    if when == "after it was sent":
        world.driver.drain()
    world.start()
    world.minibatch(0, "a1 b2 c3 d4", query="another checkpoint")
    world.driver.drain()
    assert sorted(world.out.seen.split()) == ["a1", "b2", "c3", "d4"]
    assert [each.value["v"] for each in world.out.effects if each.event == 2] == [77]


def edit(world: World, tmp_path: Path, entity: str, **columns: Any) -> Any:
    """Export, edit one event, import."""
    ledger = Ledger(world.store)
    lines = [json.loads(each) for each in export_parked(ledger)]
    for line in lines:
        if line["entity"] == entity:
            line["payload"].update(columns)
    file = tmp_path / "edited.jsonl"
    saved(file, lines)
    return import_parked(ledger, file, by="ann", reason="wrong", dry_run=False, clock=world.clock)


def test_after_a_crash_at_any_call_of_an_import_the_same_file_edits_the_rest(
    tmp_path: Path,
) -> None:
    def make() -> World:
        world = world_of(Post())
        world.out.refuses.update({"a1", "b2", "c3"})
        world.minibatch(0, "a1 b2 c3")
        world.out.refuses.clear()
        return world

    for what, world in crash_everywhere(make, lambda world: edit(world, tmp_path, "b", v=5)):
        edit(world, tmp_path, "b", v=5)
        world.driver.drain()
        assert [(each.event, each.value["v"]) for each in world.out.effects] == [(2, 5)], what


@pytest.mark.parametrize("identity", [ORDERED_POSITION, COUNTER])
def test_the_columns_that_name_an_event_stay_in_every_identity(
    identity: Any, tmp_path: Path
) -> None:
    world = world_of(Post(), identity)
    world.out.refuses.add("b2")
    world.minibatch(0, "a1 b2 c3")
    with pytest.raises(WrongLines, match="column 'c' is part of the event's identity"):
        edit(world, tmp_path, "b", c="z")
    assert edit(world, tmp_path, "b", v=3).edited == 1


# -- every type

TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "integer": (pa.int64(), 2**63 - 1, -(2**63)),
    "small integer": (pa.int8(), 127, -128),
    "number": (pa.float64(), float("nan"), float("-inf")),
    "negative zero": (pa.float64(), -0.0, 5e-324),
    "single": (pa.float32(), 0.1, 3.4028234663852886e38),
    "decimal": (pa.decimal128(38, 18), Decimal("12345678901234567890.123456789012345678"), None),
    "wide decimal": (pa.decimal256(76, 0), Decimal(10) ** 75, Decimal(-1)),
    "text": (pa.string(), '\u2028"\\ \x00 é 𝄞', ""),
    "bytes": (pa.binary(), bytes(range(256)), b""),
    "truth": (pa.bool_(), True, False),
    "day": (pa.date32(), dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "moment": (
        pa.timestamp("us", "UTC"),
        dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC),
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    ),
    "moment in a zone": (
        pa.timestamp("us", "Europe/Berlin"),
        dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC),
        dt.datetime(2026, 10, 25, 1, 30, tzinfo=dt.UTC),
    ),
    "moment without a zone": (
        pa.timestamp("us"),
        dt.datetime.fromisoformat("9999-12-31T23:59:00"),
        None,
    ),
    "interval of time": (pa.duration("us"), dt.timedelta(-1, 2, 3), dt.timedelta(999)),
    "list": (pa.list_(pa.int64()), [1, None, 2**62], []),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]),
        {"x": 2**60, "y": ["é", None]},
        {"x": None, "y": None},
    ),
    "map": (pa.map_(pa.string(), pa.float64()), [("k", float("nan")), ("l", None)], []),
    "struct that looks like a tag": (pa.struct([("$int", pa.string())]), {"$int": "7"}, None),
    "null": (pa.int64(), None, 0),
}
NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"x\xff\xfe")]
)
ARROW_ONLY = {
    "text that is not UTF-8": NOT_UTF8,
    "a year beyond Python": pa.array([2**63 - 1]).cast(pa.timestamp("us")),
    "nanoseconds": pa.array([1_000_000_001]).cast(pa.timestamp("ns")),
    "not UTF-8 in a list": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), NOT_UTF8),
    "an interval of months": pa.array([pa.scalar((1, 2, 3), pa.month_day_nano_interval())]),
}


def typed_world(values: pa.Array) -> World:
    """Event 1 of a was refused, its value is the first one."""
    world = world_like("transactional", GIVEN)
    world.out.refuses.add("a1")
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a"]), pa.array([1]), values, pa.array(["keep"])], ["c", "id", "v", "w"]
    )
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, [batch]))
    return world


def digest_of(world: World) -> str:
    from semel.delivery.parking.parking import rows_of

    [(_, row)] = world.parked_rows()
    return digest(rows_of(row).batch)


@pytest.mark.parametrize("name", list(TYPES))
def test_a_value_of_any_type_comes_back_exactly_whether_it_was_edited_or_not(
    name: str, tmp_path: Path
) -> None:
    kind, value, other = TYPES[name]
    world = typed_world(pa.array([value], kind))
    [(_, text)] = world.store.memory.scan("parked", "")
    found = edit(world, tmp_path, "a")
    assert (found.edited, found.unchanged) == (0, 1)
    assert next(iter(world.store.memory.scan("parked", "")))[1] == text
    found = edit(world, tmp_path, "a", v=encode_value(other))
    assert found.edited == 1
    expected = digest_of(typed_world(pa.array([other], kind)))
    assert digest_of(world) == expected
    edit(world, tmp_path, "a", w="changed")
    edit(world, tmp_path, "a", v=encode_value(pa.array([value], kind)[0].as_py()), w="keep")
    assert digest_of(world) == digest_of(typed_world(pa.array([value], kind)))
    [(_, row)] = world.parked_rows()
    assert row.edited is not None
    before = payloads.load_payload(text)["value"]
    assert {at: encode_value(each) for at, each in row.edited.before.items()} == before


@pytest.mark.parametrize("name", list(ARROW_ONLY))
def test_a_value_that_only_arrow_holds_stays_when_another_column_is_edited(
    name: str, tmp_path: Path
) -> None:
    world = parked_waiting(ARROW_ONLY[name])
    before = digest_of(world)
    assert edit(world, tmp_path, "a").edited == 0
    edit(world, tmp_path, "a", w="changed")
    assert digest_of(world) != before
    edit(world, tmp_path, "a", w="keep")
    assert digest_of(world) == before


def parked_waiting(values: pa.Array) -> World:
    """An event with a value that no sink gets as a Python value, parked all the same."""
    from dataclasses import replace

    from semel.delivery.parking.parking import schema_text, value_of

    world = typed_world(pa.array([1]))
    [(at, row)] = world.parked_rows()
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a"]), pa.array([1]), values, pa.array(["keep"])], ["c", "id", "v", "w"]
    )
    rows = GIVEN.stamper("0").stamp(batch)
    full = replace(row, value=value_of(rows, 0), schema=schema_text(rows))
    world.store.memory.commit([], [Put(at, full.dump())])
    return world


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct([("x", pa.int64())]), {"x": 1, "y": 2}),
        (pa.struct([("x", pa.int64()), ("y", pa.int64())]), {"x": 1}),
        (pa.list_(pa.int64()), 3),
        (pa.list_(pa.struct([("x", pa.int64())])), [{"z": 1}]),
        (pa.map_(pa.string(), pa.int64()), [1]),
        (pa.binary(), "text"),
        (pa.string(), 7),
        (pa.bool_(), 1),
        (pa.decimal128(5, 2), {"$decimal": "1.234"}),
        (pa.date32(), "2026-01-01"),
        (pa.timestamp("us"), {"$date": "x"}),
        (pa.int8(), 128),
        (pa.int64(), {"$arrow": ["x", "AAAA"]}),
    ],
    ids=str,
)
def test_what_arrow_would_drop_or_change_silently_is_refused(
    kind: pa.DataType, value: Any, tmp_path: Path
) -> None:
    world = typed_world(pa.array([None], kind))
    with pytest.raises(WrongLines, match="column 'v'"):
        edit(world, tmp_path, "a", v=value)


def test_numbers_that_other_programs_would_round_are_exported_with_a_tag(tmp_path: Path) -> None:
    world = typed_world(pa.array([2**53 + 1]))
    ledger = Ledger(world.store)
    [line] = export_parked(ledger)
    assert json.loads(line)["payload"]["v"] == {"$int": "9007199254740993"}
    assert json.loads(line, parse_int=float)["payload"]["id"] == 1.0
    assert edit(world, tmp_path, "a").edited == 0


@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=True),
            st.text(st.characters(exclude_categories=["Cs"])),
            st.binary(),
            st.integers(-(2**63), 2**63 - 1),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_content_comes_back_as_it_was(content: list[tuple[Any, ...]]) -> None:
    kind = pa.list_(
        pa.struct([("a", pa.float64()), ("b", pa.string()), ("c", pa.binary()), ("d", pa.int64())])
    )
    value = [dict(zip("abcd", each, strict=True)) for each in content]
    world = typed_world(pa.array([value], kind))
    [(at, row, _)] = read_parked(world.client, "out")
    [line] = export_parked(Ledger(world.store))
    payload = json.loads(line.encode())["payload"]
    from semel.operate.bulk.payloads import edited_value

    assert edited_value(row, payload) is None
    payload["w"] = "other"
    again = edited_value(row, payload)
    assert again is not None
    assert encode_value(again["v"]) == encode_value(row.value["v"] if row.value else None)
    del at


def test_a_row_of_an_older_version_is_read_and_written_as_it_was() -> None:
    world = world_of(Post())
    world.out.refuses.add("a1")
    world.minibatch(0, "a1")
    [(_, text)] = world.store.memory.scan("parked", "")
    assert '"edited"' not in text
    assert ParkedRow.load(text).dump() == text


def test_a_manifest_for_a_second_stage_is_not_edited(tmp_path: Path) -> None:
    world = world_of(Post())
    world.out.refuses.add("a1")
    world.minibatch(0, "a1")
    [(at, text)] = world.store.memory.scan("pipelines", "")
    described = payloads.load_payload(text)
    described["sinks"]["out"]["stage_of"] = "files"
    from semel.ledger import STAGE_OF

    described["sinks"]["out"][STAGE_OF] = "files"
    world.store.memory.commit([], [Put(at, payloads.dump_payload(described))])
    with pytest.raises(WrongLines, match="is a manifest for a second stage"):
        edit(world, tmp_path, "a", v=1)
