"""Options and arguments that several commands share: a ledger, JSON or a table, `MODULE:OBJECT`.

The modules of this room import the rooms below inside functions: `semel status` loads no more than
it needs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.errors import ConfigurationError, SemelError

if TYPE_CHECKING:
    from semel.ledger import Ledger

LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="SEMEL_LEDGER",
        metavar="URL",
        help="The ledger: sqlite:///charges.db or postgresql://user@host/database.",
        show_default=False,
    ),
]
HostOption = Annotated[str, typer.Option(help="The address to listen at.")]
PortOption = Annotated[int, typer.Option(help="The port to listen at; 0 chooses a free one.")]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file with one bearer token on each line; required unless on loopback.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def opened(url: str | None) -> Iterator[Ledger]:
    """Open the ledger of `--ledger`.

    Raises `ConfigurationError` when there is none, `LedgerUnavailable` when it does not answer.
    """
    from semel.operate import open_ledger

    with open_ledger(require_url(url)) as ledger:
        yield ledger


def require_url(url: str | None) -> str:
    """Return the URL of `--ledger`. Raises `ConfigurationError` if there is none."""
    if not url:
        raise ConfigurationError(
            "no ledger given: pass --ledger URL or set SEMEL_LEDGER "
            "(sqlite:///charges.db, postgresql://user@host/database)"
        )
    return url


def find_object(subject: str) -> Any:
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
    from semel.delivery import only_look

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


def call_object(subject: str, function: Callable[[], Any]) -> Any:
    """Call a function of the module. Raises `ConfigurationError` for every error of it."""
    from semel.delivery import only_look

    only_look(f"`semel` inspects {subject!r}")
    try:
        return function()
    except SemelError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{subject} failed: {_text_of(error)}") from error


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
