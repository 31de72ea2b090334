"""The command `semel explain`: the guarantee of a pipeline or a sink, in plain words."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from semel.cli.showing import JsonOption, show_json
from semel.delivery.explaining import Explanation
from semel.delivery.explaining import explain as explain_it
from semel.errors import ConfigurationError, SemelError

EPILOG = (
    "Example: semel explain payments:charge. MODULE is found as `python -m` would, the current "
    "directory first; OBJECT may be a sink, what semel.deliver gave, or a function without "
    "arguments that returns one of them."
)


def explain(
    subject: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Say what is promised: which row of the promise table applies and why, what may be in doubt,
    what makes two events the same, and what is not promised.
    """
    with contextlib.redirect_stdout(sys.stderr):  # what the module prints is not our answer
        told = _explained(subject)
    if as_json:
        show_json(told.to_json())
    else:
        print(told)


def _explained(subject: str) -> Explanation:
    """Import the module, find the object and explain it; every fault of theirs is one line."""
    module, _, name = subject.partition(":")
    if not module or not name:
        raise ConfigurationError(f"{subject!r} is not MODULE:OBJECT, as in payments:charge")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module)
    except SemelError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ConfigurationError(f"cannot import {module!r}: {_told(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{module!r} has no {name!r}")
        found = getattr(found, part)
    try:
        return explain_it(found)
    except SemelError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{subject} failed: {_told(error)}") from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
