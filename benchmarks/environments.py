"""Environments of Python for peers whose packages semel does not need: made once, in the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from semel.errors import ConfigurationError


def python_with(name: str, *packages: str) -> Path:
    """The Python of a venv called `name` that has these packages, each with its version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semel"
    folder = cache / name
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        environment = {name: each for name, each in os.environ.items() if "CONSTRAINT" not in name}
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *packages],
        ):
            done = subprocess.run(  # noqa: S603 - our own words
                command, capture_output=True, text=True, check=False, env=environment
            )
            if done.returncode:
                what = ", ".join(packages)
                raise ConfigurationError(f"{what} could not be installed: {done.stderr[-2000:]}")
        (folder / "whole").touch()
    return python
