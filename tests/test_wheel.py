"""The wheel has the package, its entry points and its metadata, and nothing else, and it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from zipfile import ZipFile

import pytest

import semel
from semel.verify.process_group import ProcessGroup
from support.spark.driver_scripts import wait_for
from support.spark.pipeline_place import TIMEOUT_S, PipelinePlace

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel without network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("*.whl")
    assert path.name == f"semel-{semel.__version__}-py3-none-any.whl"
    return path


@pytest.fixture(scope="module")
def wheel(built: Path) -> Mapping[str, bytes]:
    """The files of the wheel by name."""
    with ZipFile(built) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def commands(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment of its own, which finds the libraries of this one but
    not its semel; return the folder of its commands.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    commands = folder / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(commands / "python")]
    install = [*pip, "install", "--quiet", "--no-deps", "--no-index", str(built)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [packages] = folder.glob("lib/python*/site-packages")
    # A folder in a .pth file is searched, but its own .pth files, such as semel's, are not read.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return commands


def metadata(wheel: Mapping[str, bytes]) -> Message:
    [name] = [name for name in wheel if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel[name].decode())


def test_the_wheel_has_every_module_of_the_package(wheel: Mapping[str, bytes]) -> None:
    source = ROOT / "src"
    modules = {path.relative_to(source).as_posix() for path in (source / "semel").rglob("*.py")}
    packed = {name for name in wheel if name.endswith(".py")}
    assert packed == modules
    assert "semel/py.typed" in wheel


@pytest.mark.parametrize("folder", ["static", "templates"])
def test_the_wheel_has_the_pages_of_the_console(wheel: Mapping[str, bytes], folder: str) -> None:
    source = ROOT / "src" / "semel" / "console" / folder
    place = f"semel/console/{folder}/"
    packed = {name.removeprefix(place) for name in wheel if name.startswith(place)}
    assert packed == {path.name for path in source.iterdir()} != set()


def test_the_wheel_has_no_tests_no_benchmarks_and_no_other_folder(
    wheel: Mapping[str, bytes],
) -> None:
    parts = {part for name in wheel for part in PurePosixPath(name).parts[:-1]}
    assert not parts & {"tests", "benchmarks", "examples", "docs", "__pycache__"}
    roots = {PurePosixPath(name).parts[0] for name in wheel}
    assert roots == {"semel", f"semel-{semel.__version__}.dist-info"}


def test_the_wheel_has_the_command_and_the_pytest_plugin(wheel: Mapping[str, bytes]) -> None:
    [name] = [name for name in wheel if name.endswith(".dist-info/entry_points.txt")]
    entry_points = wheel[name].decode()
    assert "[console_scripts]\nsemel = semel.cli.main:main" in entry_points
    assert "[pytest11]\nsemel = semel.verify.contract.plugin" in entry_points


def test_an_installation_without_extras_needs_neither_spark_nor_a_client_nor_greenlet(
    wheel: Mapping[str, bytes],
) -> None:
    needed = [
        text for text in metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in text
    ]
    names = {text.partition(">")[0].strip() for text in needed}
    assert names == {"numpy", "pyarrow", "rich", "typer", "xxhash"}


def test_every_destination_and_tool_has_an_extra(wheel: Mapping[str, bytes]) -> None:
    extras = set(metadata(wheel).get_all("Provides-Extra", []))
    assert extras >= {"spark", "connect", "postgres", "http", "redis", "kafka", "simulate"}


def run(command: Path, *arguments: str, where: Path) -> subprocess.CompletedProcess[str]:
    """Run a command outside of the checkout, with nothing of it on the path."""
    own = ("PYTHON", "SEMEL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    line = [str(command), *arguments]
    return subprocess.run(line, cwd=where, env=env, capture_output=True, text=True, check=False)


def test_the_installed_wheel_is_what_runs(commands: Path, tmp_path: Path) -> None:
    script = "import semel.cli.main; print(semel.cli.main.__file__)"
    done = run(commands / "python", "-c", script, where=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(commands.parent)
    version = run(commands / "semel", "--version", where=tmp_path)
    assert version.stdout.strip() == f"semel {semel.__version__}"


def test_the_installed_wheel_runs_doctor(commands: Path, tmp_path: Path) -> None:
    done = run(commands / "semel", "doctor", "--json", where=tmp_path)
    assert done.stderr == ""
    found = {each["what"]: each for each in json.loads(done.stdout)}
    assert {each for each in found if found[each]["state"] == "missing"} == set()
    assert done.returncode == 0


def test_the_installed_wheel_runs_simulate(commands: Path, tmp_path: Path) -> None:
    arguments = ("--worlds", "3", "--seed", "7", "--processes", "1", "--json")
    done = run(commands / "semel", "simulate", *arguments, where=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["worlds"] == 3


class Shown(NamedTuple):
    """What status and console say of the pipeline: its state, and how much is delivered."""

    status: str
    console: str
    delivered: int
    delivered_on_page: int


def shown(place: PipelinePlace, console: str) -> Shown:
    """Ask `semel status` and the console while whatever runs is running."""
    ledger = ("--ledger", f"sqlite:///{place.folder}/charges.db")
    status = json.loads(place.semel("status", "charges", *ledger, "--json"))
    with urllib.request.urlopen(f"{console}/pipeline?name=charges", timeout=30) as answer:
        page = answer.read().decode()
    [sink] = status["sinks"]
    states = re.findall(r'class="state state-([a-z-]+)"', page)
    [row] = re.findall(r'<th scope="row">files</th>(.*?)</tr>', page, re.DOTALL)
    cells = [re.sub(r"<[^>]*>|,", "", each) for each in re.findall(r"<td.*?</td>", row)]
    on_page = int(cells[DELIVERED].replace("-", "0"))
    return Shown(status["state"], states[0], sink["delivered"] or 0, on_page)


DELIVERED = 3
"""The cell of the console's table of sinks that says how many events are delivered."""


def test_the_quick_start_by_the_letter_killed_half_way_delivers_everything_once(
    commands: Path, tmp_path: Path
) -> None:
    """Installed from a wheel: `semel init`, two lines edited, `semel run`, SIGKILL, `semel run`.
    Status and console tell the truth before, after and meanwhile.
    """
    python = str(commands / "python")
    variables = {"PYTHONPATH": "", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    file = tmp_path / "pipeline.toml"
    with ProcessGroup("quick-start") as group:
        place = PipelinePlace(tmp_path, group, variables, command=(str(commands / "semel"),))
        place.semel("init", str(file))
        assert (tmp_path / "payments" / "0003.json").exists(), "a sample to begin with"
        expected = place.payments(16, 8, within="ours")
        text = file.read_text()
        for old, new in (('"payments"', '"ours"'), ('"delivered"', '"out"')):
            assert text.count(old) == 1
            text = text.replace(old, new)
        file.write_text(text)
        killed = place.start("run", str(file))
        wait_for((tmp_path / "checkpoints/charges/commits/0").exists, killed, TIMEOUT_S)
        ledger = f"sqlite:///{tmp_path}/charges.db"
        served = place.start("console", "--ledger", ledger, "--port", "0", "--json")
        wait_for(lambda: '"url"' in served.said(), served, TIMEOUT_S)
        [console] = re.findall(r'"url": "([^"]+)"', served.said())
        wait_for(lambda: place.delivered("out"), killed, TIMEOUT_S)
        first = shown(place, console)
        assert (first.status, first.console) == ("running", "running")
        assert 0 <= first.delivered <= first.delivered_on_page <= len(place.delivered("out"))
        killed.kill(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        assert 0 < len(place.delivered("out")) < len(expected)
        dead = shown(place, console)
        assert (dead.status, dead.console) == ("gone", "gone")
        assert dead.delivered == dead.delivered_on_page <= len(place.delivered("out"))
        again = place.start("run", str(file))
        wait_for(lambda: len(place.delivered("out")) >= len(expected), again, TIMEOUT_S)
        second = shown(place, console)
        assert (second.status, second.console) == ("running", "running")
        again.kill(signal.SIGTERM)
        again.finished(TIMEOUT_S)
        ended = shown(place, console)
        assert ended == ("ended", "ended", len(expected), len(expected))
        served.kill(signal.SIGTERM)
        served.finished(TIMEOUT_S)
        said = again.said()
        status = place.status("charges")["files"]
    assert sorted(place.delivered("out")) == expected
    assert "charges: drained, " in said
    assert "0 in doubt, 0 parked" in said
    assert "Traceback" not in said
    assert "Exception" not in said
    assert (status["delivered"], status["in_doubt"]) == (len(expected), 0)
