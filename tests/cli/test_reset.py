"""`semel reset`: says what it will repeat, read again or skip, and does it with --yes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from semel.ledger import pending_reset
from semel.ledger.rows import OpenRow
from semel.ledger.store.commit import Put
from semel.streams import Inbox, NewEvent
from support.command_line import beats, pipeline_at, read_json, refused, semel
from support.destinations import lost
from support.pipeline import COUNTER, GIVEN, POSITION, World

pytestmark = pytest.mark.rows("O22")

Out = pytest.CaptureFixture[str]
WHY = ("--reason", "the bank lost the night", "--by", "ann")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    made = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("SEMEL_LEDGER", made)
    return made


def delivered(url: str, identity: Any = POSITION) -> World:
    world = pipeline_at(url, identity=identity)
    world.minibatch(0, "a1 b2 a3 b4")
    return world


def test_without_yes_it_says_what_it_would_do_and_changes_nothing(url: str, capsys: Out) -> None:
    world = delivered(url)
    before = (
        list(world.store.memory.scan("open", "")),
        list(world.store.memory.scan("sequences", "")),
    )
    where = '{"t": {"0": 2}}'
    status, out, err = semel(capsys, "reset", "pay", "--to", where, "--repeat", *WHY)
    assert (status, err) == (0, "")
    assert out.splitlines()[1].split() == ["t/0", "5", "2", "3", "0", "0"]
    assert "offsets delivered again: 3" in out
    assert "Nothing was changed: run it with --yes" in out
    after = (
        list(world.store.memory.scan("open", "")),
        list(world.store.memory.scan("sequences", "")),
    )
    assert after == before
    told = read_json(capsys, "reset", "pay", "--to", where, "--repeat", *WHY)
    assert (told["repeated"], told["skipped"], told["dry_run"]) == (3, 0, True)


def test_with_yes_it_is_recorded_who_did_it_when_and_why(url: str, capsys: Out) -> None:
    world = delivered(url)
    status, out, _ = semel(capsys, "reset", "pay", "--to", '{"t": {"0": 9}}', *WHY, "--yes")
    assert status == 0
    assert "pay: reset 1 to positions (by ann)" in out
    assert """.option('startingOffsets', '{"t": {"0": 9}}')""" in out
    assert "offsets skipped: 4" in out
    [row] = read_json(capsys, "ledger", "ls", "resets")
    kept = row["payload"]
    assert (kept["by"], kept["reason"]) == ("ann", "the bank lost the night")
    assert (kept["before"], kept["positions"]) == ({"t/0": 5}, {"t/0": 9})
    assert kept["at"] == pytest.approx(world.clock.now, abs=60)
    assert pending_reset(world.client) is not None
    assert semel(capsys, "ledger", "check")[0] == 0


def test_what_is_not_known_is_unknown_and_never_zero(url: str, capsys: Out) -> None:
    delivered(url, GIVEN)
    told = read_json(capsys, "reset", "pay", "--to", "earliest", *WHY)
    assert (told["partitions"], told["repeated"], told["suppressed"]) == ([], None, None)
    out = semel(capsys, "reset", "pay", "--to", "latest", *WHY)[1]
    assert "offsets skipped: unknown" in out


def test_by_position_the_latest_is_unknown_unless_the_source_is_an_inbox(
    url: str, capsys: Out
) -> None:
    delivered(url)
    told = read_json(capsys, "reset", "pay", "--to", "latest", *WHY)
    assert (told["repeated"], told["skipped"]) == (0, None)
    assert "t/0" in semel(capsys, "reset", "pay", "--to", "latest", *WHY)[1]
    with Inbox(url, "t", partitions=1) as inbox:
        inbox.append([NewEvent(entity="c", value=b"x") for _ in range(11)])
    told = read_json(capsys, "reset", "pay", "--to", "latest", *WHY)
    assert (told["skipped"], told["partitions"][0]["begins"]) == (6, 11)
    told = read_json(capsys, "reset", "pay", "--to", "earliest", "--repeat", *WHY)
    assert (told["repeated"], told["skipped"]) == (5, 0)


def test_given_ids_know_their_positions_where_the_checkpoint_was_read(
    url: str, capsys: Out
) -> None:
    world = delivered(url, GIVEN)
    [(at, text)] = world.store.memory.scan("open", "")
    row = OpenRow.load(text)
    object.__setattr__(row, "inputs", ('{"t":{"0":40,"1":50}}', '{"logOffset":3}', "x"))
    world.store.memory.commit([], [Put(at, row.dump())])
    where = '{"t": {"0": 25}}'
    told = read_json(capsys, "reset", "pay", "--to", where, *WHY)
    assert (told["repeated"], told["suppressed"], told["skipped"]) == (0, 15, 0)
    assert told["starting_offsets"] == '{"t": {"0": 25, "1": 50}}'
    told = read_json(capsys, "reset", "pay", "--to", where, "--repeat", *WHY)
    assert (told["repeated"], told["suppressed"]) == (15, 0)


def test_what_cannot_be_reset_so_is_refused_in_one_line(url: str, capsys: Out) -> None:
    world = delivered(url)
    for where, says in (
        ("first", "--to must be earliest, latest, or positions as"),
        ("{}", "--to must be earliest, latest, or positions as"),
        ('{"t": 3}', "--to must be earliest, latest, or positions as"),
        ('{"t": {"0": -2}}', "--to t/0: the position must be an offset, 0 or more, of a numbered"),
        ('{"t": {"x": 2}}', "--to t/x: the position must be an offset"),
        ('{"t": {"٣": 2}}', "--to t/٣: the position must be an offset"),
        (f'{{"t": {{"0": {2**63}}}}}', "--to t/0: the position must be an offset"),
        ("[" * 100_000, "--to must be earliest, latest, or positions as"),
        ('{"u": {"0": 2}}', "has not read u/0; the ledger knows t/0"),
        ('{"t": {"0": 2}}', "nothing would be delivered again. Pass --repeat"),
        ("earliest", "nothing would be delivered again. Pass --repeat"),
    ):
        assert says in refused(capsys, "reset", "pay", "--to", where, *WHY), where
    for where in ("latest", '{"t": {"0": 5}}', '{"t": {"0": 9}}'):
        told = refused(capsys, "reset", "pay", "--to", where, "--repeat", *WHY)
        assert "--repeat needs a position before the one where the pipeline stands" in told
    assert "there is no pipeline 'no'" in refused(capsys, "reset", "no", "--to", "latest", *WHY)
    assert "reason is empty" in refused(capsys, "reset", "pay", "--to", "latest", "--reason", " ")
    assert pending_reset(world.client) is None


def test_a_pipeline_that_runs_is_refused(url: str, capsys: Out) -> None:
    delivered(url)
    with beats(os.environ["SEMEL_LEDGER"]):
        told = refused(capsys, "reset", "pay", "--to", "latest", *WHY, "--yes")
    assert "pipeline 'pay' is running (run 1); stop the query before resetting" in told


def test_counted_ids_and_parked_events_are_refused_before_anything_is_asked(
    url: str, capsys: Out
) -> None:
    world = pipeline_at(url, identity=GIVEN)
    world.out.plan(lost)
    world.minibatch(0, "a1 b2")
    told = refused(capsys, "reset", "pay", "--to", "earliest", "--repeat", *WHY)
    assert "1 events are parked" in told
    assert "semel resolve --where 'sink=out'" in told


def test_ids_that_were_counted_do_not_survive_it(url: str, capsys: Out) -> None:
    delivered(url, COUNTER)
    told = refused(capsys, "reset", "pay", "--to", "earliest", *WHY)
    assert "counted ids do not survive a new beginning" in told
