"""The wheel has the package, its entry points and its metadata, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

import semel

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """Build the wheel without network; return its files by name."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    [path] = folder.glob("*.whl")
    assert path.name == f"semel-{semel.__version__}-py3-none-any.whl"
    with ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Mapping[str, bytes]) -> Message:
    [name] = [name for name in wheel if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel[name].decode())


def test_the_wheel_has_every_module_of_the_package(wheel: Mapping[str, bytes]) -> None:
    source = ROOT / "src"
    modules = {path.relative_to(source).as_posix() for path in (source / "semel").rglob("*.py")}
    packed = {name for name in wheel if name.endswith(".py")}
    assert packed == modules
    assert "semel/py.typed" in wheel


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
