"""The command `semel verify-store`: runs the contract of stores against one store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.output import plain, show_json, show_table
from semel.errors import ConfigurationError
from semel.ledger import open_store
from semel.ledger.store import Key
from semel.urls import redact

if TYPE_CHECKING:
    from semel.verify.store_contract import StoreCase, StoreCaseResult

EPILOG = (
    "Example: semel verify-store sqlite:///scratch.db. Exit status: 0 every case is ok; 1 a case "
    "failed; 2 a wrong command or URL; 3 the store cannot be reached. docs/own-store.md describes "
    "how to write and register a store."
)


def verify_store(
    url: Annotated[str, typer.Argument(metavar="URL", show_default=False)],
    *,
    case: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run this case only; repeat it.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Check that a store does what every store of a ledger must do.

    Each case writes rows of its own inside the ledger's table, under names that no pipeline uses,
    and removes them at its end. A ledger that is not there yet is created, as a first run does.
    """
    chosen = _chosen(case)
    store = open_store(url)
    try:
        store.read([Key("verify", "reachable")])
    finally:
        store.close()
    results = _run(url, chosen)
    if as_json:
        show_json(_json(url, results))
    else:
        _show(url, results)
    if not all(result.ok for result in results):
        raise typer.Exit(1)


def _chosen(names: Sequence[str] | None) -> list[StoreCase]:
    from semel.verify.store_contract import CASES

    known = {each.name: each for each in CASES}
    for name in names or ():
        if name not in known:
            raise ConfigurationError(f"unknown case {name!r}; use one of {', '.join(known)}")
    return [each for each in CASES if not names or each.name in names]


def _run(url: str, cases: Sequence[StoreCase]) -> list[StoreCaseResult]:
    """Run the cases one after the other, with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from semel.verify.store_contract import run_case

    progress = Progress(
        TextColumn("{task.description:<32}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    results = []
    with progress:
        bar = progress.add_task("starting", total=len(cases))
        for case in cases:
            progress.update(bar, description=case.name)
            results.append(run_case(case, partial(open_store, url)))
            progress.update(bar, advance=1)
    return results


def _show(url: str, results: Sequence[StoreCaseResult]) -> None:
    show_table(
        ("case", "what must hold", "verdict", "s"),
        [(each.case, each.says, each.verdict, f"{each.seconds:.1f}") for each in results],
        right=("s",),
    )
    failed = [each for each in results if not each.ok]
    for each in failed:
        print(f"\n{each.case}: {plain(each.finding)}")
    print()
    if failed:
        print(f"{redact(url)} failed {len(failed)} of {len(results)} cases")
    else:
        print(f"{redact(url)} passed {len(results)} cases")


def _json(url: str, results: Sequence[StoreCaseResult]) -> dict[str, Any]:
    from semel.verify.store_contract import CASES

    return {
        "store": redact(url),
        "ok": all(each.ok for each in results),
        "complete": len(results) == len(CASES),
        "cases": [
            {
                "case": each.case,
                "says": each.says,
                "verdict": each.verdict,
                "finding": each.finding or None,
                "seconds": round(each.seconds, 3),
            }
            for each in results
        ],
    }
