"""`semel status` and `semel ledger`: runs, progress, rows, and the outcome of an event."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.delivery import QueryProgressed
from semel.events import Given, Identity
from semel.ledger import (
    LedgerClient,
    QueryFigures,
    StateFigures,
    StateKind,
    open_store,
    payloads,
)
from semel.ledger.keys import make_key
from semel.ledger.store.commit import Put
from semel.ledger.verbs.pruning import REMEMBER_S, Pruning
from semel.ledger.verbs.runs import Owners
from semel.protocol import OnDoubt, ParkedState
from semel.runtime import Process, SystemClock
from semel.verify.servers.postgres import PostgresServer
from support.command_line import beats, pipeline_at, read_json, refused, semel
from support.destinations import Crash, Database, Destination, Post, crash, lost
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    ORDERED_POSITION,
    POSITION,
    World,
    events,
)

Out = pytest.CaptureFixture[str]


@pytest.fixture
def began() -> float:
    """The time before the pipeline is made, where it is asked for first."""
    return time.time()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = pipeline_at(tmp_path / "ledger.db")
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    return made


# -- status


def test_status_tells_who_runs_what_is_open_and_what_is_parked(
    began: float, world: World, capsys: Out
) -> None:
    world.out.plan(lost)
    world.minibatch(0, "a1 b2 a3")
    world.open(1)
    with beats(os.environ["SEMEL_LEDGER"]):
        told = read_json(capsys, "status", "pay", "--watch")
        status, out, _ = semel(capsys, "status", "--watch")
    assert {name: told[name] for name in ("run", "state", "host", "process", "minibatch")} == {
        "run": 1,
        "state": "running",
        "host": "host",
        "process": 1,
        "minibatch": "1.1",
    }
    assert (told["complete"], told["partitions"]) == (False, None)
    assert told["identity"]["kind"] == "given"
    assert told["waits_for_a_person"] == 1
    assert told["sinks"] == [
        {
            "sink": "out",
            "capability": "opaque",
            "last_osn": 3,
            "delivered": 1,
            "transmitted": 2,
            "pending_partitions": 0,
            "in_doubt": 1,
            "rejected": 0,
            "waiting": 1,
            "skipped": 0,
            "discarded": 0,
            "blocked_entities": 1,
            "resends": {"asked": 0, "sending": 0, "last": None},
            "delivered_in_open": 0,
            "oldest_parked_since": told["sinks"][0]["oldest_parked_since"],
            "cut": [],
        }
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}Z", told["sinks"][0]["oldest_parked_since"])
    assert re.search(r"oldest parked(.|\n)*\d+ s ago", out)
    assert status == 0
    beat = re.search(r"running, (\d+) s ago", out)
    assert beat is not None
    assert int(beat[1]) <= round(time.time() - began)
    for words in ("1 on host", "1.1 open", "given: c, id", "semel parked ls"):
        assert words in out
    assert [each["pipeline"] for each in read_json(capsys, "status")] == ["pay"]


@pytest.mark.rows("O20")
def test_status_shows_throughput_latency_and_the_state_of_the_query_after_the_run_too(
    world: World, capsys: Out
) -> None:
    assert read_json(capsys, "status", "pay")["figures"] is None
    world.minibatch(0, "a1 b2 a3")
    query = QueryFigures(0, 3.0, 2.5, 1.25, "2026-11-18T12:00:00.000Z")
    changelog = StateFigures(
        "stateStoreSave",
        StateKind.CHANGELOG,
        2,
        40,
        3 * 2**20,
        rows_updated=7,
        rows_removed=5,
        changelogs_written=2,
        snapshots_written=1,
        loads=2,
        changelogs_loaded=9,
        seconds_writing=0.25,
        seconds_loading=0.5,
    )
    memory = StateFigures("symmetricHashJoin", StateKind.MEMORY, 8, 1, 100)
    for _ in range(2):
        world.driver.observer.observe(QueryProgressed("pay", query, (changelog, memory)))
    world.driver.beat(ended=True)
    shown = read_json(capsys, "status", "pay")["figures"]
    assert shown["newest_minibatches"]["minibatches"] == 1
    assert shown["newest_minibatches"]["sinks"]["out"]["delivered"] == 3
    assert shown["query"]["watermark"] == "2026-11-18T12:00:00.000Z"
    first, second = shown["state"]
    assert (first["kind"], first["rows"], first["rows_updated"]) == ("changelog", 40, 14)
    assert (first["changelogs_written"], first["changelogs_loaded"]) == (4, 18)
    assert (second["kind"], second["changelogs_written"]) == ("memory", None)
    assert shown["unknown"] == ""
    status, out, _ = semel(capsys, "status")
    assert status == 0
    [line] = [each for each in out.splitlines() if "stateStoreSave" in each]
    shown = " ".join(line.split()[1:])
    assert shown == "stateStoreSave changelog 40 14 10 3.0 MiB 4 / 18 2 / 4 0.5 / 1.0"
    [line] = [each for each in out.splitlines() if "symmetricHashJoin" in each]
    assert line.split()[-9:] == ["-", "/", "-", "-", "/", "-", "0.0", "/", "-"]
    assert "events/s" in out


TOLD = ("delivered", "in_doubt", "rejected", "waiting", "skipped", "discarded")


def told_of(capsys: Out, url: str) -> dict[str, int | None]:
    """The counts of the only sink that are not nought."""
    [each] = read_json(capsys, "status", "--ledger", url)
    [sink] = each["sinks"]
    return {name: sink[name] for name in TOLD if sink[name] != 0}


def test_what_policy_skip_dropped_counts_as_skipped_also_when_its_row_is_pruned(
    tmp_path: Path, capsys: Out
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    made = pipeline_at(url, on_doubt=OnDoubt.SKIP)
    made.out.plan(lost)
    made.out.refuses.add("b2")
    made.minibatch(0, "a1 b2 c3")
    assert told_of(capsys, url) == {"delivered": 1, "rejected": 1, "skipped": 1}
    made.resolve("b2", "discarded")
    for batch in range(1, 4):
        made.minibatch(batch, f"d{batch}")
    made.clock.move(2 * REMEMBER_S)
    Pruning(made.client).run(["out"])
    assert made.parked() == []
    assert told_of(capsys, url) == {"delivered": 4, "skipped": 1, "discarded": 1}


def test_what_is_parked_of_an_open_minibatch_is_not_taken_from_those_before(
    world: World, capsys: Out
) -> None:
    world.minibatch(0, "a1 b2")
    world.out.plan(lost, crash)
    with pytest.raises(Crash):
        world.task(world.open(1), "c3 d4")
    told = told_of(capsys, os.environ["SEMEL_LEDGER"])
    assert told == {"delivered": 2, "in_doubt": 1}


def test_what_an_open_minibatch_transmitted_is_explained_beside_what_is_delivered(
    world: World, capsys: Out
) -> None:
    world.minibatch(0, "a1 b2")
    world.task(world.open(1), "c3 d4 e5")
    [sink] = read_json(capsys, "status", "pay")["sinks"]
    assert (sink["last_osn"], sink["delivered"], sink["transmitted"]) == (2, 2, 5)
    _, out, _ = semel(capsys, "status")
    assert sink["delivered_in_open"] == 3
    said = "pay, sink out: minibatch 1.1 is open: 3 of its events are delivered so far. "
    assert f"{said}`transmitted` includes 3 of its output" in out
    world.minibatch(1, "c3 d4 e5")
    _, out, _ = semel(capsys, "status")
    assert "is open" not in out
    [sink] = read_json(capsys, "status", "pay")["sinks"]
    assert sink["delivered_in_open"] is None


def test_what_is_parked_in_an_open_minibatch_is_not_delivered_so_far(
    world: World, capsys: Out
) -> None:
    world.minibatch(0, "a1 b2")
    world.out.refuses.add("d4")
    world.task(world.open(1), "c3 d4 e5 d6")
    [sink] = read_json(capsys, "status", "pay")["sinks"]
    assert (sink["delivered_in_open"], sink["rejected"], sink["delivered"]) == (3, 1, 2)


def test_after_a_lost_checkpoint_nothing_is_said_of_how_many_are_delivered(
    world: World, capsys: Out
) -> None:
    world.minibatch(0, "a1 b2")
    world.start()
    world.minibatch(0, "a1 b2 c3", "q2")
    assert told_of(capsys, os.environ["SEMEL_LEDGER"]) == {"delivered": None}
    assert " - " in semel(capsys, "status")[1]


def test_a_finished_batch_tells_delivered_from_parked(world: World, capsys: Out) -> None:
    world.out.refuses.add("b2")
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, "a1 b2 c3"))
    world.driver.finish(opening)
    assert told_of(capsys, os.environ["SEMEL_LEDGER"]) == {"delivered": 2, "rejected": 1}


def test_a_check_finds_what_waits_for_a_person(world: World, capsys: Out) -> None:
    world.minibatch(0, "a1")
    assert semel(capsys, "status", "--check")[0] == 0
    world.out.refuses.add("b2")
    world.minibatch(1, "b2")
    assert semel(capsys, "status", "--check")[0] == 1
    assert semel(capsys, "status")[0] == 0
    world.resolve("b2", "discarded")
    assert semel(capsys, "status", "--check")[0] == 0


def test_a_run_that_is_watched_is_running_silent_ended_or_gone(world: World, capsys: Out) -> None:
    def state() -> tuple[int, str]:
        told = read_json(capsys, "status", "pay", "--watch")
        return told["run"], told["state"]

    with beats(os.environ["SEMEL_LEDGER"]):
        assert state() == (1, "running")
    assert state() == (1, "silent")
    Owners(world.client).beat(1, "nonce-1", ended=True)
    assert state() == (1, "ended")
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    start = Path(f"/proc/{killed.pid}/stat").read_text().rpartition(")")[2].split()[19]
    here = Process.here()
    driver = Process(here.host, here.boot, killed.pid, start)
    Owners(world.client).register(world.driver.describe(), driver, "nonce-2")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert state() == (2, "gone")


@pytest.mark.parametrize("away_s", [-3_600.0, 3_600.0])
def test_the_clock_of_the_machine_that_runs_it_does_not_matter(
    world: World, capsys: Out, tmp_path: Path, away_s: float
) -> None:
    with beats(tmp_path / "ledger.db", away_s=away_s):
        assert read_json(capsys, "status", "pay", "--watch")["state"] == "running"
        assert read_json(capsys, "status", "pay")["state"] == "unconfirmed"
    assert read_json(capsys, "status", "pay", "--watch")["state"] == "silent"


def test_without_watching_status_answers_at_once_with_what_is_known(
    world: World, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asleep(*_: object) -> None:
        raise AssertionError("status waited")

    monkeypatch.setattr(SystemClock, "sleep", asleep)
    told = read_json(capsys, "status", "pay")
    assert (told["state"], told["host"]) == ("unconfirmed", "host")
    out = semel(capsys, "status")[1]
    assert re.search(
        r"pay: run 1 is not confirmed: its last heartbeat was \d+ s ago by the clock of host; "
        "`semel status --watch` watches it for 10 s",
        out,
    )


def test_a_run_of_this_machine_is_known_to_run_without_watching(
    world: World, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> str:
        found = read_json(capsys, "status", "pay")["state"]
        return str(found)

    Owners(world.client).register(world.driver.describe(), Process.here(), "nonce-2")
    world.clock.now = time.time()
    Owners(world.client).beat(2, "nonce-2")
    monkeypatch.setattr("semel.operate.status.WATCH_S", 60.0)
    assert state() == "running"
    world.clock.now = time.time() - 120.0  # the process is there, but its heartbeat stopped
    Owners(world.client).beat(2, "nonce-2")
    assert state() == "unconfirmed"
    world.clock.now = time.time() + 120.0  # the clock was set back
    Owners(world.client).beat(2, "nonce-2")
    assert state() == "unconfirmed"
    Owners(world.client).beat(2, "nonce-2", ended=True)
    assert state() == "ended"


def test_a_batch_job_is_named_without_its_batch(tmp_path: Path, capsys: Out) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    store = open_store(url)
    Owners(LedgerClient(store, "pay@1")).register({"sinks": {}}, Process.here(), "n")
    store.close()
    assert read_json(capsys, "status", "pay", "--ledger", url)["pipeline"] == "pay@1"
    assert read_json(capsys, "parked", "ls", "pay", "--ledger", url) == []


def as_another(act: Callable[[], Any]) -> Any:
    """Call a function in a child process of another user, and return its result."""
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            number = pwd.getpwnam("nobody").pw_uid
            os.setgroups([])
            os.setgid(number)
            os.setuid(number)
            os.write(its, json.dumps(act()).encode())
        except BaseException as error:
            os.write(its, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(its)
    os.waitpid(pid, 0)
    with os.fdopen(ours) as told:
        return json.load(told)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("is_open", [False, True])
def test_a_user_who_may_only_read_the_ledger_gets_its_status(is_open: bool, capsys: Out) -> None:
    with tempfile.TemporaryDirectory(prefix="semel-") as name:
        folder = Path(name)
        world = pipeline_at(folder / "ledger.db")
        world.minibatch(0, "a1 b2")
        world.driver.beat(ended=True)
        if not is_open:
            world.store.memory.close()
        for each in folder.iterdir():
            each.chmod(0o644)
        folder.chmod(0o755)
        url = f"sqlite:///{folder}/ledger.db"
        semel(capsys, "status", "--ledger", url)  # imports all of it: another user may not
        [told] = as_another(lambda: read_json(capsys, "status", "--ledger", url))
        assert (told["state"], told["minibatch"]) == ("ended", "1.0")
        world.store.memory.close()
        assert [each.name for each in folder.iterdir()] == ["ledger.db"]


# -- ledger ls


def test_the_tables_are_counted_and_their_rows_listed_expanded(world: World, capsys: Out) -> None:
    world.minibatch(0, "a1 b2")
    counts = {each["table"]: each["rows"] for each in read_json(capsys, "ledger", "ls")}
    assert counts["pipelines"] == counts["open"] == counts["sequences"] == 1
    [row] = read_json(capsys, "ledger", "ls", "open")
    assert (row["key"], row["payload"]["batch"]) == ("pay", 0)
    assert read_json(capsys, "ledger", "ls", "events", "--prefix", "other/") == []
    status, out, _ = semel(capsys, "ledger", "ls", "streams")
    assert status == 0
    assert out.startswith("pay/out/")


def test_a_large_payload_is_shown_expanded(world: World, capsys: Out) -> None:
    import pyarrow as pa

    world.out.plan(lost)
    batch = events("a1")
    large = "x" * 200_000
    batch = batch.append_column("text", pa.array([large]))
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, [batch]))
    [row] = read_json(capsys, "ledger", "ls", "parked")
    assert row["payload"]["value"]["text"] == large


def test_a_list_says_that_there_is_more(world: World, capsys: Out) -> None:
    world.out.plan(lost)
    world.minibatch(0, "a1 a2 a3")
    assert len(read_json(capsys, "ledger", "ls", "parked", "--limit", "2")) == 2
    assert "more than 2 rows" in semel(capsys, "ledger", "ls", "parked", "--limit", "2")[1]
    assert "more" not in semel(capsys, "ledger", "ls", "parked", "--limit", "3")[1]


# -- ledger find


@pytest.mark.parametrize(
    ("identity", "entity", "second"),
    [(GIVEN, "b", "2"), (INCREASING, "b", "2"), (COUNTER, "b", "1"), (POSITION, "t/0", "2")],
)
def test_an_event_is_found_with_when_minibatch_attempt_and_number(
    tmp_path: Path, capsys: Out, identity: Identity, entity: str, second: str
) -> None:
    made = pipeline_at(tmp_path / "ledger.db", identity=identity)
    made.minibatch(0, "a1 b2", number=17)
    at = ("--ledger", f"sqlite:///{tmp_path}/ledger.db")
    [told] = read_json(capsys, "ledger", "find", "--entity", entity, "--event", second, *at)
    assert (told["state"], told["minibatch"], told["attempt"]) == ("delivered", "1.0", "1.17")
    assert told["osn"] is not None
    assert told["when"].startswith("20")
    status, out, _ = semel(capsys, "ledger", "find", "--entity", entity, "--event", "99", *at)
    assert status == 1
    assert "not seen" in out


def test_what_is_in_doubt_parked_or_pending_is_told_so(world: World, capsys: Out) -> None:
    def states(event: str) -> tuple[int, list[str]]:
        arguments = ("ledger", "find", "--entity", "a", "--event", event, "--json")
        status, out, _ = semel(capsys, *arguments)
        return status, [each["state"] for each in json.loads(out)]

    world.out.plan(lost)
    world.minibatch(0, "a1 b2 a3")
    assert states("1") == (0, ["in doubt"])
    assert states("3") == (0, ["parked"])
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(world.open(1), "c5 d6")
    assert states("9") == (1, ["pending"])
    _, out, _ = semel(capsys, "ledger", "find", "--entity", "a", "--event", "9")
    assert "it may be among the events of partition 0" in out


@pytest.mark.parametrize(
    ("destination", "then"),
    [
        (Post(), "the next start shows which of their events are in doubt"),
        (Database(), "the next start asks the destination what it has"),
    ],
)
def test_what_becomes_of_a_pending_partition_is_told_by_capability(
    tmp_path: Path, destination: Destination, then: str, capsys: Out
) -> None:
    world = pipeline_at(tmp_path / "ledger.db", destination)
    destination.plan(crash)
    with pytest.raises(Crash):
        world.task(world.open(0), "c5 d6")
    Owners(world.client).beat(1, "nonce-1", ended=True)
    _, out, _ = semel(capsys, "status", "--ledger", f"sqlite:///{tmp_path}/ledger.db")
    assert f"pay, sink out: 1 partition is pending, and no run is active; {then}\n" in out


def test_digits_may_be_a_text_and_an_id_may_have_several_columns(
    tmp_path: Path, capsys: Out
) -> None:
    import pyarrow as pa

    identity = Given(entity="c", event=("day", "id"))
    made = pipeline_at(tmp_path / "ledger.db", identity=identity)
    batch = events("a1 a2").append_column("day", pa.array(["20261114", "20261114"]))
    opening = made.open(0)
    made.driver.end(opening, made.task(opening, [batch]))
    at = ("--entity", "a", "--ledger", f"sqlite:///{tmp_path}/ledger.db")
    several = ("--event", "20261114", "--event", "2")
    [told] = read_json(capsys, "ledger", "find", *several, *at)
    assert told["state"] == "delivered"
    assert semel(capsys, "ledger", "find", "--event", "2", *at)[0] == 1


MOMENT = 1_763_287_200_250_000  # 2025-11-16 10:00:00.25 UTC
DAY = 20_408  # 2025-11-16


@pytest.mark.parametrize(
    ("form", "number", "typed"),
    [
        ("timestamp", MOMENT, "2025-11-16T10:00:00.250000Z"),
        ("timestamp", MOMENT, "2025-11-16 10:00:00.25"),
        ("timestamp", MOMENT, "2025-11-16T11:00:00.25+01:00"),
        ("timestamp", MOMENT, "2025-11-16 11:00:00.250+0100"),
        ("timestamp", MOMENT, "2025-11-16 10:00:00.25 UTC"),
        ("timestamp", MOMENT, str(MOMENT)),
        ("timestamp", MOMENT - 250_000, "2025-11-16T10:00:00"),
        ("timestamp", MOMENT - 250_000, "2025-11-16T10:00Z"),
        ("timestamp", DAY * 86_400_000_000, "2025-11-16"),
        ("timestamp without zone", MOMENT, "2025-11-16 10:00:00.25"),
        ("timestamp without zone", MOMENT, "2025-11-16T10:00:00.250000"),
        ("date", DAY, "2025-11-16"),
        ("date", DAY, "2025-11-16T00:00:00"),
        ("date", DAY, str(DAY)),
    ],
)
def test_an_id_that_is_a_date_or_a_timestamp_is_found_in_any_readable_form(
    tmp_path: Path, capsys: Out, form: str, number: int, typed: str
) -> None:
    made = pipeline_at(tmp_path / "ledger.db")
    made.minibatch(0, f"a{number}")
    at = make_key("pipelines", "pay")
    [text] = made.store.read([at]).values()
    known = json.loads(text)
    with_form = payloads.dump_payload({**known, "forms": {known["identity"]["event"][0]: form}})
    made.store.commit([], [Put(at, with_form)])
    where = ("--entity", "a", "--ledger", f"sqlite:///{tmp_path}/ledger.db")
    [told] = read_json(capsys, "ledger", "find", "--event", typed, *where)
    assert told["state"] == "delivered"
    assert semel(capsys, "ledger", "find", "--event", "2025-11-17", *where)[0] == 1


def test_a_text_that_looks_like_a_date_is_no_number(tmp_path: Path, capsys: Out) -> None:
    made = pipeline_at(tmp_path / "ledger.db")
    made.minibatch(0, f"a{DAY}")
    where = ("--entity", "a", "--ledger", f"sqlite:///{tmp_path}/ledger.db")
    assert semel(capsys, "ledger", "find", "--event", "2025-11-16", *where)[0] == 1


def test_an_event_of_a_finished_batch_is_answered_for(tmp_path: Path, capsys: Out) -> None:
    made = pipeline_at(tmp_path / "ledger.db")
    opening = made.open(0)
    made.driver.end(opening, made.task(opening, "a1 b2"))
    made.driver.finish(opening)
    at = ("--ledger", f"sqlite:///{tmp_path}/ledger.db")
    [told] = read_json(capsys, "ledger", "find", "--entity", "a", "--event", "1", *at)
    assert told["state"] == "handled"
    assert "finished with 2 events, and each of them was delivered or is parked" in told["why"]


def test_without_an_event_it_tells_what_is_known_of_the_entity(tmp_path: Path, capsys: Out) -> None:
    made = pipeline_at(tmp_path / "ledger.db", identity=INCREASING)
    made.out.plan(lost)
    made.minibatch(0, "a1 b2 a3")
    at = ("--ledger", f"sqlite:///{tmp_path}/ledger.db")
    [told] = read_json(capsys, "ledger", "find", "--entity", "a", *at)
    assert (told["handled_up_to"], told["blocked"], told["waiting"]) == (3, True, 1)
    assert [(each["id"], each["state"]) for each in told["parked"]] == [(1, "held"), (3, "waiting")]
    status, out, _ = semel(capsys, "ledger", "find", "--entity", "a", *at)
    assert status == 0
    assert "handled up to  single ids" in out
    assert semel(capsys, "ledger", "find", "--entity", "z", *at)[0] == 1


def test_a_position_with_an_entity_is_found_by_its_source_partition(
    tmp_path: Path, capsys: Out
) -> None:
    made = pipeline_at(tmp_path / "ledger.db", identity=ORDERED_POSITION)
    made.minibatch(0, "a1 b2")
    at = ("--ledger", f"sqlite:///{tmp_path}/ledger.db")
    [told] = read_json(capsys, "ledger", "find", "--entity", "t/0", "--event", "2", *at)
    assert told["state"] == "delivered"


# -- what is wrong


def test_a_wrong_ledger_pipeline_sink_or_table_gets_one_line(
    world: World, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no pipeline 'x'" in refused(capsys, "status", "x")
    find = ("ledger", "find", "--entity", "a", "--event", "1")
    assert "no pipeline 'x'" in refused(capsys, *find, "--pipeline", "x")
    assert "no sink 'x'" in refused(capsys, *find, "--sink", "x")
    assert "no table 'x'" in refused(capsys, "ledger", "ls", "x")
    assert "--entity" in refused(capsys, "ledger", "find")
    assert "no ledger at" in refused(capsys, "status", "--ledger", f"sqlite:///{tmp_path}/no.db")
    assert not (tmp_path / "no.db").exists()
    assert "not the URL" in refused(capsys, "status", "--ledger", "mysql://x")
    (tmp_path / "text.db").write_text("not a database, and quite long enough to be read as one")
    assert "not a SQLite" in refused(capsys, "status", "--ledger", f"sqlite:///{tmp_path}/text.db")
    monkeypatch.delenv("SEMEL_LEDGER")
    assert "SEMEL_LEDGER" in refused(capsys, "status")


def test_two_pipelines_have_to_be_told_apart(world: World, capsys: Out) -> None:
    other = LedgerClient(world.store, "refunds")
    Owners(other).register({"sinks": {"out": {}}, "identity": None}, Process.here(), "n")
    told = refused(capsys, "ledger", "find", "--entity", "a")
    assert "pay" in told
    assert "refunds" in told
    assert [each["pipeline"] for each in read_json(capsys, "status")] == ["pay", "refunds"]


def test_looking_makes_no_ledger_of_another_database(
    tmp_path: Path, capsys: Out, postgres: PostgresServer, postgres_url: str
) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    assert "no ledger" in refused(capsys, "status", "--ledger", f"sqlite:///{path}")
    before = path.read_bytes()
    assert "no ledger in" in refused(capsys, "status", "--ledger", postgres_url)
    assert "no ledger in" in refused(capsys, "status", "--ledger", postgres_url)
    assert path.read_bytes() == before


def test_an_empty_ledger_has_no_pipelines(tmp_path: Path, capsys: Out) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    store = open_store(url)
    store.commit([], [])
    store.close()
    assert "no pipeline" in semel(capsys, "status", "--ledger", url)[1]
    assert "no pipeline" in refused(capsys, "ledger", "find", "--entity", "a", "--ledger", url)


def test_a_ledger_that_does_not_answer_is_status_3_without_its_password(capsys: Out) -> None:
    url = "postgresql://ann:geheim@127.0.0.1:1/ledger"
    status, out, err = semel(capsys, "status", "--ledger", url)
    assert (status, out) == (3, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("semel: ")
    assert "geheim" not in err


def test_what_came_from_outside_cannot_colour_the_screen(world: World, capsys: Out) -> None:
    def shout(act: Any) -> None:
        raise OSError("\x1b[31mred\n[bold]loud[/bold]")

    world.out.plan(shout)
    world.minibatch(0, "a1")
    [(_, row)] = world.parked_rows()
    assert row.state is ParkedState.HELD
    for arguments in (("parked", "ls"), ("parked", "show", "a/1"), ("ledger", "ls", "parked")):
        out = semel(capsys, *arguments)[1]
        assert "\x1b" not in out
        assert "[bold]loud[/bold]" in out


def test_repeats_that_were_dropped_are_shown(world: World, capsys: Out) -> None:
    world.driver.drop_repeats = True
    for batch, text in enumerate(("a1 b2", "a1 b2 a3")):
        opening = world.open(batch)
        world.driver.end(opening, world.task(opening, text, drop_repeats=True))
    assert "dropped as repeats" not in semel(capsys, "status")[1]
    world.driver.beat()
    assert read_json(capsys, "status", "pay")["figures"]["repeats_dropped"] == {"out": 2}
    out = semel(capsys, "status")[1]
    assert "pay, sink out: events of the run dropped as repeats (drop_repeats): 2" in out
