"""The version has one source, `semel.__version__`, and the changelog has a section for it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import Version
from typer.testing import CliRunner

import semel
from semel.cli.main import app

ROOT = Path(__file__).parent.parent
_SECTION = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def sections() -> list[tuple[str, str]]:
    """The versions of the changelog with their dates, in the order of the page."""
    return _SECTION.findall((ROOT / "CHANGELOG.md").read_text())


def test_the_package_takes_its_version_from_the_module() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)
    assert "version" not in settings["project"]
    assert settings["project"]["dynamic"] == ["version"]
    source = ROOT / settings["tool"]["hatch"]["version"]["path"]
    assert source == ROOT / "src/semel/__init__.py"
    assert re.findall(r'^__version__ = "(.*)"$', source.read_text(), re.MULTILINE) == [
        semel.__version__
    ]


def test_the_command_prints_the_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"semel {semel.__version__}\n"


def test_the_newest_section_of_the_changelog_is_the_version() -> None:
    first, newest = sections()[:2]
    assert first == ("Unreleased", "")
    assert newest[0] == semel.__version__


def test_the_sections_of_the_changelog_go_back_in_time() -> None:
    released = sections()[1:]
    versions = [Version(version) for version, _ in released]
    assert versions == sorted(set(versions), reverse=True)
    dates = [date for _, date in released]
    assert all(dates), "a released version has a date"
    assert dates == sorted(dates, reverse=True)
