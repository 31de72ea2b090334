"""The command `semel console`: shows a ledger in a browser.

Always true: the extra is imported when the command runs, so that the others do not need it.
"""

from __future__ import annotations

import sys

from semel.cli.options import (
    HostOption,
    JsonOption,
    LedgerOption,
    PortOption,
    TokenOption,
    require_url,
)
from semel.cli.output import show_json
from semel.errors import MissingExtra

EPILOG = (
    "Example: semel console --ledger sqlite:///charges.db; then open http://127.0.0.1:8098 in a "
    "browser. For other machines: openssl rand -hex 32 > console.tokens; semel console --ledger "
    "sqlite:///charges.db --host 0.0.0.0 --token-file console.tokens. Exit status: 0 after SIGTERM "
    "or Ctrl-C; 2 a wrong option or ledger; 3 the ledger cannot be reached."
)

_PORT = 8098


def console(
    *,
    ledger: LedgerOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = _PORT,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the pipelines of a ledger in a browser: what is wrong, what to type, parked events.

    It needs the ledger and nothing else: no Spark, no connection to a run, no other site. It runs
    until SIGTERM or Ctrl-C; the exit status is 0 then. With --token-file a visitor has to log in,
    also on loopback.
    """
    url = require_url(ledger)
    try:
        from semel.console import ConsoleSettings, serve
    except ImportError as missing:
        raise MissingExtra(
            f"{missing.name} is not installed: pip install 'semel[console]'"
        ) from missing
    settings = ConsoleSettings(url, host, port, token_file)
    serve(settings, lambda at: _started(at, as_json=as_json))


def _started(url: str, *, as_json: bool) -> None:
    """Print where it listens: for a person on standard error, as JSON on standard output."""
    if as_json:
        show_json({"url": url})
        sys.stdout.flush()
    print(f"semel console: {url}", file=sys.stderr, flush=True)
