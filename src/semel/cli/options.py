"""Options that several commands share: which ledger, and JSON or a table.

The modules of this room import the rooms below inside functions: `semel status` loads no more than
it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.errors import ConfigurationError

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
