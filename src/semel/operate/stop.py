"""Asks a run of a pipeline to stop where nothing is in doubt, and waits for its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.ledger import LedgerClient, Owners
from semel.operate.ledgers import choose_pipeline
from semel.operate.status import read_status
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.ledger import Ledger, OwnerRow
    from semel.runtime import Clock

LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class StoppedRun:
    """A run that was asked to stop.

    Attributes:
        ended: whether it has ended, in order.
        gone: whether it ended without recording it: its process was killed.
        taken_over: the run that has the pipeline instead; a standby takes over at once.
        minibatch: the newest minibatch; `complete` if it was finished, else the next run goes on.
        in_doubt: how many events of the pipeline are in doubt.
        seconds: how long it took.
    """

    pipeline: str
    run: int
    ended: bool
    gone: bool
    taken_over: int | None
    minibatch: str | None
    complete: bool | None
    in_doubt: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "seconds": round(self.seconds, 1)}


def stop_run(
    ledger: Ledger,
    pipeline: str,
    *,
    by: str,
    wait_s: float,
    asked: Callable[[OwnerRow], object] = lambda _: None,
    clock: Clock | None = None,
) -> StoppedRun:
    """Ask the run that has a pipeline to stop, and wait for its end, for `wait_s` at most; `asked`
    is called once it is asked. May be repeated.

    Raises `ConfigurationError` if the pipeline is not running.
    """
    clock = clock or SystemClock()
    name = choose_pipeline(ledger, pipeline)
    owners = Owners(LedgerClient(ledger.store, name))
    before = owners.owner()
    if before is None or before.ended or before.process.gone():
        raise ConfigurationError(f"pipeline {name!r} is not running")
    owner = owners.request_stop(by, before.run) or before
    asked(owner)
    began = clock.monotonic()
    while True:
        now = owners.owner()
        taken_over = now is not None and now.run != owner.run
        if now is None or now.ended or taken_over or now.process.gone():
            break
        if clock.monotonic() - began >= wait_s:
            break
        clock.sleep(LOOK_S)
    seconds = clock.monotonic() - began
    status = read_status(ledger, name, watch=False)
    return StoppedRun(
        name,
        owner.run,
        ended=now is not None and (now.ended or taken_over),
        gone=now is not None and not now.ended and not taken_over and now.process.gone(),
        taken_over=now.run if now is not None and taken_over else None,
        minibatch=None if status.minibatch is None else str(status.minibatch),
        complete=status.complete,
        in_doubt=sum(sink.in_doubt for sink in status.sinks),
        seconds=seconds,
    )
