"""Pipeline files in a folder of the test's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.pipeline import Pipeline, WrongPipelineFile, build, read_file
from support.pipeline_files import Build, Wrong, write_module


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module that pipeline files name; what they import is forgotten later."""
    write_module(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def built(folder: Path) -> Build:
    """Write a file and build its pipeline."""

    def make(text: str, **environ: str) -> Pipeline:
        path = folder / "p.toml"
        path.write_text(text)
        return build(read_file(path, environ))

    return make


@pytest.fixture
def wrong(built: Build) -> Wrong:
    """Write a file and return what is wrong with it, without its folder."""

    def find(text: str, **environ: str) -> list[str]:
        with pytest.raises(WrongPipelineFile) as raised:
            built(text, **environ)
        lines = str(raised.value).splitlines()
        assert lines
        return [line.replace(raised.value.file, "p.toml") for line in lines]

    return find
