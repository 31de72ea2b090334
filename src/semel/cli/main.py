"""The command `semel`: every command is a function here or in a file beside it.

Always true:
- what a machine reads goes to standard output, what a person watches goes to standard error;
- what is wrong gets one clear line on standard error and no traceback;
- the exit status is 0 when all is well, 1 when a check found something, 2 for a wrong command,
  ledger, pipeline or event, 3 when the ledger cannot be reached.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from semel import __version__
from semel.cli import (
    bench,
    demo,
    doctor,
    explain,
    ledger,
    parked,
    rescale,
    resolve,
    simulate,
    status,
    verify_sink,
    verify_store,
)
from semel.cli.output import plain
from semel.errors import LedgerUnavailable, SemelError

EPILOG = (
    "Exit status: 0 all is well; 1 a check found something, or `ledger find` found nothing; 2 a "
    "wrong command, ledger, pipeline or event; 3 the ledger cannot be reached. Commands that look "
    "at a ledger take --ledger URL or $SEMEL_LEDGER, and --json. Example: semel status --ledger "
    "sqlite:///charges.db"
)

HELP = {
    "demo": "See it: real Spark, killed half-way, with semel and without.",
    "status": "Who runs each pipeline, which minibatch is open, what waits.",
    "resolve": "Say what became of an event in doubt or a dead letter.",
    "rescale": "Spread entities over another number of partitions.",
    "explain": "The guarantee of a pipeline or a sink, in plain words.",
    "doctor": "What is missing on this machine, and what to type.",
    "simulate": "The real protocol in thousands of simulated worlds.",
    "verify-sink": "Crash a sink at every step; does it earn its capability?",
    "verify-store": "Does a store do what every store of a ledger must do?",
}
"""What the list of commands says of each; `semel COMMAND --help` says more."""

app = typer.Typer(
    name="semel",
    help="Exactly-once delivery from Spark Structured Streaming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=EPILOG,
)
app.command("demo", short_help=HELP["demo"], epilog=demo.EPILOG)(demo.demo)
app.command("status", short_help=HELP["status"], epilog=status.EPILOG)(status.status)
app.add_typer(parked.app, name="parked")
app.command("resolve", short_help=HELP["resolve"], epilog=resolve.EPILOG)(resolve.resolve)
app.command("rescale", short_help=HELP["rescale"], epilog=rescale.EPILOG)(rescale.rescale)
app.add_typer(ledger.app, name="ledger")
app.command("explain", short_help=HELP["explain"], epilog=explain.EPILOG)(explain.explain)
app.command("doctor", short_help=HELP["doctor"], epilog=doctor.EPILOG)(doctor.doctor)
app.add_typer(bench.app, name="bench")
app.command("simulate", short_help=HELP["simulate"], epilog=simulate.EPILOG)(simulate.simulate)
app.command("verify-sink", short_help=HELP["verify-sink"], epilog=verify_sink.EPILOG)(
    verify_sink.verify_sink
)
app.command("verify-store", short_help=HELP["verify-store"], epilog=verify_store.EPILOG)(
    verify_store.verify_store
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"semel {__version__}")
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


_UNREACHABLE = 3

_INTERRUPTED = 130
"""The exit status after Ctrl-C; some versions of typer return it, others raise."""


def _complain(error: Exception) -> None:
    """Say in one line what is wrong."""
    print(f"semel: {plain(' '.join(str(error).split()))}", file=sys.stderr)


def main() -> None:
    """Run `semel`; the entry point of the package."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that knows few characters shows escapes
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(standalone_mode=False, prog_name="semel")
        if status == _INTERRUPTED:
            raise typer.Abort
    except _USAGE as error:
        told = getattr(error, "format_message", error.__str__)()
        print(told if "\n" in told else f"semel: {told}", file=sys.stderr)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        print("semel: stopped", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except LedgerUnavailable as error:
        _complain(error)
        sys.exit(_UNREACHABLE)
    except (SemelError, OSError) as error:
        _complain(error)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
