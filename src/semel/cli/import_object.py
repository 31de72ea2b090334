"""`MODULE:OBJECT` on the command line: a module to import, and an object in it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semel.delivery import only_look
from semel.errors import ConfigurationError, SemelError


def find(subject: str) -> Any:
    """Import the module as `python -m` does, the current directory first, and return the object.
    The module is not allowed to start a pipeline.

    Raises `ConfigurationError` for every error of the module.
    """
    module, _, name = subject.partition(":")
    if not module or not name:
        raise ConfigurationError(
            f"{subject!r} is not MODULE:OBJECT; write it as in payments:charge"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    only_look(f"`semel` imports {module!r}")
    try:
        found: Any = importlib.import_module(module)
    except (SemelError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ConfigurationError(f"cannot import {module!r}: {_text_of(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{module!r} has no {name!r}")
        found = getattr(found, part)
    return found


def call(subject: str, function: Callable[[], Any]) -> Any:
    """Call a function of the module. Raises `ConfigurationError` for every error of it."""
    only_look(f"`semel` inspects {subject!r}")
    try:
        return function()
    except SemelError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{subject} failed: {_text_of(error)}") from error


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
