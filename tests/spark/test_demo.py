"""`semel demo`, run for real: what it counts, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from semel.verify.process_group import command_of
from support.docs_blocks import blocks, shape
from support.spark.driver_scripts import wait_for

SEMEL = [sys.executable, "-c", "from semel.cli.main import main; main()"]
ENOUGH_S = 300.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that only this test's processes know, for their temporary files."""
    yield tmp_path
    assert marked(tmp_path) == {}


def start(place: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with spoken(place, "out").open("wb") as out, spoken(place, "err").open("wb") as err:
        return subprocess.Popen(
            [*SEMEL, "demo", *arguments],
            stdout=out,
            stderr=err,
            env={**os.environ, "TMPDIR": str(place), "SEMEL_LEDGER": "sqlite:///nowhere.db"},
            start_new_session=True,
            # Where tests run in the background, Ctrl-C is ignored, and that is inherited.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )


def spoken(place: Path, what: str) -> Path:
    return place.with_name(f"{place.name}.{what}")


def said(place: Path) -> str:
    return spoken(place, "err").read_text()


def marked(place: Path) -> dict[int, str]:
    """Every living process that works in the folder or has it in its arguments."""
    text = str(place).encode()
    found: dict[int, str] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and each.name != str(os.getpid()):
            try:
                told = (each / "environ").read_bytes() + (each / "cmdline").read_bytes()
            except OSError:
                continue
            if text in told:
                found[int(each.name)] = command_of(int(each.name))
    return found


def end(run: subprocess.Popen[bytes]) -> None:
    """Whatever the test came to, its processes end; whoever started them sees to theirs."""
    if run.poll() is None:
        run.kill()
    run.wait()


SOMETIMES = ("waiting", "behind it", "delivered")
"""What the README shows of its run, and a run with other kills may not have."""


def unlike_the_readme(said: str, *, in_doubt: bool) -> list[str]:
    """Give the lines of the README's run, up to its table, that this run does not have."""
    [shown] = [each.text for each in blocks("README.md", "") if "side by side" in each.text]
    before, doubts, after = re.split(
        r"(?m)^(?=semel holds|plain ━)", shown.partition("\n" + " " * 20)[0]
    )
    expected = "\n".join([before, after, doubts if in_doubt else ""])
    printed = {shape(line) for line in said.splitlines()}
    return [
        line
        for line in expected.splitlines()
        if line.strip(" .")
        and not any(word in line for word in SOMETIMES)
        and shape(line) not in printed
    ]


def test_another_run_than_the_readmes_is_found() -> None:
    [shown] = [each.text for each in blocks("README.md", "") if "side by side" in each.text]
    assert unlike_the_readme(shown, in_doubt=True) == []
    [missing] = unlike_the_readme(shown.replace("and its JVM with", "with"), in_doubt=True)
    assert missing.startswith("killed the driver")


def test_plain_charges_twice_and_semel_once(place: Path) -> None:
    run = start(place, "--json", "--payments", "200")
    try:
        run.wait(ENOUGH_S)
    finally:
        end(run)
    assert run.returncode == 0, said(place)
    counts = json.loads(spoken(place, "out").read_text().splitlines()[-1])
    plain, semel = counts["plain"], counts["semel"]
    assert plain.keys() == {"once", "twice", "never"}
    assert plain["twice"] > 0
    assert plain["once"] + plain["twice"] == 200
    in_doubt = semel.pop("in_doubt")
    assert semel == {"once": 200, "twice": 0, "never": 0}
    assert 0 <= in_doubt <= 4  # two partitions, two crashes, a window of one
    assert "killed Spark's Python worker" in said(place)
    assert "killed the driver" in said(place)
    assert said(place).count("$ semel resolve @") == (in_doubt > 0)
    assert unlike_the_readme(said(place), in_doubt=in_doubt > 0) == []
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whoever_stops_it_half_way_finds_nothing_left_behind(
    place: Path, number: signal.Signals
) -> None:
    run = start(place, "--payments", "100")
    try:
        wait_for(lambda: "killed Spark's Python worker" in said(place), timeout_s=ENOUGH_S)
        assert any("SparkSubmit" in command for command in marked(place).values())
        run.send_signal(number)
        status = run.wait(30)
    finally:
        end(run)
    if number == signal.SIGINT:
        assert (status, said(place).splitlines()[-1]) == (130, "semel: stopped")
    wait_for(lambda: not marked(place) and not list(place.iterdir()), timeout_s=30)


def test_without_java_it_says_so_in_one_line(place: Path) -> None:
    done = subprocess.run(
        [*SEMEL, "demo"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAVA_HOME": str(place / "nowhere"), "TMPDIR": str(place)},
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("semel: Java: no ")
    assert "install Java 17" in line
