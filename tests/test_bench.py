"""A benchmark says how long it takes and who failed, and leaves nothing behind but that."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from benchmarks import plots, redis, results
from benchmarks.__main__ import main
from benchmarks.progress import BenchmarkProgress
from benchmarks.rounds import folder
from benchmarks.writes import counted_writes
from semel.ledger.store.commit import Key, Put
from semel.ledger.store.opening import open_store
from semel.runtime import SystemClock
from semel.verify.servers import kafka

CLOCK = SystemClock()
PATIENCE_S = 20.0
ROOT = Path(__file__).parents[1]
BENCHMARK = """
from benchmarks.rounds import folder
with folder() as place:
    (place / "checkpoint").mkdir()
    print(place, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Results are kept in a folder of the test."""
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run `python -m benchmarks` in this process, so that replaced code is what runs."""
    before = sys.argv
    sys.argv = ["benchmarks", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_the_folder_of_a_benchmark_is_gone_at_its_end() -> None:
    with folder() as place:
        (place / "ledger.db").touch()
    assert not place.exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_the_folder_of_a_benchmark_is_gone_when_its_process_is_ended(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BENCHMARK],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        place = Path(process.stdout.readline().strip())
        assert place.is_dir()
        process.send_signal(how)
    ends = CLOCK.monotonic() + PATIENCE_S
    while place.exists() and CLOCK.monotonic() < ends:
        CLOCK.sleep(0.05)
    assert not place.exists()


def test_the_commits_of_a_ledger_that_is_new_are_counted(postgres_url: str) -> None:
    with counted_writes(postgres_url) as count:
        store = open_store(postgres_url)
        for number in range(4):
            store.commit([], [Put(Key("open", "pay"), f'{{"n":{number}}}')])
        store.close()
        assert count() == (4, 2)


def test_a_benchmark_says_how_long_it_takes_and_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "measure", partial(redis.measure, rows=2_000))
    status, out, err = run(capsys, "redis", "--json")
    assert (status, len(json.loads(out)["rows"])) == (0, 2)
    lines = err.splitlines()
    assert lines[0] == "benchmark redis: about 2 minutes on 2 quiet cores: 16 runs"
    assert re.fullmatch(r"counters, round 0 of 3: semel \(\d+ min so far\)", lines[1])
    last = r"counters, round 3 of 3: pipelined \(\d+ min so far, about \d+ min left\)"
    assert re.fullmatch(last, lines[16])


def test_a_finished_run_is_kept_with_what_it_ran_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    monkeypatch.setattr(redis, "measure", partial(redis.measure, rows=2_000))
    status, out, _ = run(capsys, "redis", "--json")
    [path] = kept.iterdir()
    result = json.loads(path.read_text())
    assert (status, json.loads(out)) == (0, result)
    assert path.name == f"redis-{result['date'][:10]}.json"
    assert (result["benchmark"], result["arguments"]) == ("redis", {"repetitions": 3})
    assert result["machine"].keys() == {"cores", "memory_gib", "cpu"}
    assert result["versions"].keys() == {"python", "pyspark", "pyarrow", "semel"}
    assert {"commit", "changed"} < result.keys()
    for private in (socket.gethostname(), str(ROOT), str(Path.home())):
        assert f'"{private}' not in path.read_text()
    name, rows = plots.read(path)
    assert (name, len(rows)) == ("redis", 2)
    assert run(capsys, "redis", "--no-keep")[0] == 0
    assert list(kept.iterdir()) == [path]
    results.keep(result, kept)
    assert {each.name for each in kept.iterdir()} == {path.name, f"{path.stem}-2.json"}


def test_every_kept_result_of_the_repository_says_what_it_ran_on() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        result = json.loads(path.read_text())
        name = f"{result['benchmark']}-{result['date'][:10]}"
        assert path.stem.removeprefix(name) in {"", *(f"-{number}" for number in range(2, 100))}
        assert result["machine"].keys() == {"cores", "memory_gib", "cpu"}
        assert result["versions"].keys() == {"python", "pyspark", "pyarrow", "semel"}
        assert re.fullmatch(r"[0-9a-f]{40}", result["commit"])


@pytest.mark.parametrize("whose", ["semel", "pipelined"])
def test_a_benchmark_that_fails_says_which_side_did_and_keeps_what_it_measured(
    whose: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    method, runs = ("peer", count()) if whose == "pipelined" else ("semel", count())
    works = getattr(redis.RedisBenchmark, method)

    def fails(bench: redis.RedisBenchmark) -> float:
        if bench.rows == 2_000 and next(runs) == 1:
            raise RuntimeError("the line is cut\nand much more")
        return float(works(bench))

    monkeypatch.setattr(redis.RedisBenchmark, method, fails)
    monkeypatch.setattr(redis, "measure", partial(redis.measure, rows=2_000))
    status, out, err = run(capsys, "redis", "--json")
    assert status == 1
    assert "Traceback" not in err
    where = f"in counters, round 1 of 3: {whose}"
    assert f"benchmark redis failed {where}: RuntimeError: the line is cut\n" in err
    told = json.loads(out)
    assert told["failed"]["where"] == where
    before = 8 + 2 + (whose == "pipelined")
    assert len(told["measured"]) == before
    assert err.count(" events/s\n") == before
    [folder] = tmp_path.glob("semel-benchmark-redis-failed-*")
    assert told["failed"]["folder"] == str(folder)
    assert "raise RuntimeError" in (folder / "error.txt").read_text()
    assert len(json.loads((folder / "measured.json").read_text())) == before


def test_logs_are_kept_where_a_turn_fails_and_only_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = tmp_path / "log"
    log.write_text("the broker said this")
    progress = BenchmarkProgress()

    def fails() -> float:
        raise ConnectionError

    def run() -> None:
        try:
            with progress.leaves({"broker.log": log.read_text, "no.log": (log / "no").read_text}):
                progress.run("copy", 0, 3, "semel", "rec/s", lambda: 5.0)
                progress.run("copy", 0, 3, "Flink", "rec/s", fails)
        finally:
            log.unlink()  # as a server that goes takes its log with it

    with pytest.raises(ConnectionError) as raised:
        run()
    failure = progress.failed("kafka", raised.value)
    assert str(failure).splitlines() == [
        "benchmark kafka failed in copy, round 0 of 3: Flink: ConnectionError",
        (
            f"the error and the logs are kept in {failure.folder}: "
            "error.txt, measured.json, broker.log, no.log"
        ),
        "measured so far:",
        "  copy, round 0: semel: 5 rec/s",
    ]
    assert (failure.folder / "broker.log").read_text() == "the broker said this"
    assert "could not be read" in (failure.folder / "no.log").read_text()


def test_a_benchmark_that_cannot_start_says_what_is_missing_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kafka, "FETCH", tmp_path / "nowhere")
    status, _, err = run(capsys, "kafka")
    assert status == 2
    assert err.splitlines()[-1] == (
        "benchmarks: the jars of a Kafka broker are fetched only in a checkout of semel (`semel "
        "chaos` takes the folder `libs` of an unpacked Kafka as --kafka-jars)"
    )
