"""What `MODULE:OBJECT` means on the command line: a module to import, and something in it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semel.delivery.start_guard import only_look
from semel.errors import ConfigurationError, SemelError


def find(subject: str) -> Any:
    """Import the module as `python -m` would, the current directory first, and give the object.
    A pipeline that the module would start is refused.

    Raises `ConfigurationError`, one line, for every fault of theirs.
    """
    module, _, name = subject.partition(":")
    if not module or not name:
        raise ConfigurationError(f"{subject!r} is not MODULE:OBJECT, as in payments:charge")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    only_look(f"`semel` imports {module!r}")
    try:
        found: Any = importlib.import_module(module)
    except (SemelError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ConfigurationError(f"cannot import {module!r}: {_told(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{module!r} has no {name!r}")
        found = getattr(found, part)
    return found


def call(subject: str, function: Callable[[], Any]) -> Any:
    """Call what was found, or something of it. Raises `ConfigurationError` for what it raises."""
    only_look(f"`semel` looks at {subject!r}")
    try:
        return function()
    except SemelError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{subject} failed: {_told(error)}") from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
