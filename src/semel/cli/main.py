"""The command `semel`: every command is a function here or in a file beside it.

Always true:
- what a machine reads goes to standard output, what a person watches goes to standard error;
- a wrong option gets one clear line and exit status 2; a finding of a check is exit status 1.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from semel.cli import simulate

app = typer.Typer(
    name="semel",
    help="Exactly-once delivery from Spark Structured Streaming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("simulate", epilog=simulate.EPILOG)(simulate.simulate)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"semel {version('semel')}")
        raise typer.Exit


@app.callback()
def _semel(
    shown: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Exactly-once delivery from Spark Structured Streaming."""
    del shown


_USAGE: type[Exception] = typer.BadParameter.__mro__[1]
"""What a wrong option or argument raises, wherever this version of typer keeps it."""


_INTERRUPTED = 130
"""The exit status after Ctrl-C; some versions of typer return it, others raise."""


def main() -> None:
    """Run `semel`; the entry point of the package."""
    try:
        status = app(standalone_mode=False)
        if status == _INTERRUPTED:
            raise typer.Abort
    except _USAGE as error:
        told = getattr(error, "format_message", error.__str__)()
        print(told if "\n" in told else f"semel: {told}", file=sys.stderr)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        print("semel: stopped", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except OSError as error:
        print(f"semel: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
