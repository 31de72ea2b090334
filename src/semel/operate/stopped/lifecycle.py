"""The new name and the end of a pipeline: `semel rename` and `semel forget`.

Always true:
- neither touches a pipeline whose heartbeat moves;
- what forget removes is counted before it removes anything, and events without an outcome are
  forgotten only if the caller names their number.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.ledger import LedgerClient, Lifecycle, Owners
from semel.operate.ledgers import choose_pipeline
from semel.operate.status import RunState, read_status
from semel.streams import stream_of_pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.ledger import Ledger


@dataclass(frozen=True, slots=True)
class RenamedPipeline:
    """A pipeline under its new name.

    Attributes:
        known_as: the name under which destinations know it.
    """

    pipeline: str
    before: str
    known_as: str

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ForgottenPipeline:
    """What forgetting a pipeline removes, or has removed.

    Attributes:
        tables: how many rows by table.
        parked: events that are not in a final state.
        pending: partitions whose events may be in doubt.
        known_as: the name under which destinations know it, and go on to.
        done: whether it was removed.
    """

    pipeline: str
    tables: Mapping[str, int]
    parked: int
    pending: int
    known_as: str
    done: bool

    @property
    def unsettled(self) -> int:
        """How many of them the caller must name."""
        return self.parked + self.pending

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "unsettled": self.unsettled}


def rename_pipeline(ledger: Ledger, pipeline: str, new: str, *, by: str) -> RenamedPipeline:
    """Let a stopped pipeline continue under another name. Destinations go on to know it by its
    first name. The heartbeat of the run is watched, for up to 10 seconds.

    Raises `ConfigurationError` while the pipeline runs, for a name that is taken, and for a batch
    job; `Fenced` if the pipeline changed meanwhile.
    """
    name = choose_pipeline(ledger, pipeline)
    _refuse_running(ledger, name, "renaming")
    lifecycle = Lifecycle(LedgerClient(ledger.store, name), stream_of_pipeline(name))
    lifecycle.rename(new, stream_of_pipeline(new), by)
    known = Owners(LedgerClient(ledger.store, new)).known_as()
    return RenamedPipeline(new, name, known or new)


def forget_pipeline(
    ledger: Ledger, pipeline: str, *, by: str, unsettled: int | None, dry_run: bool
) -> ForgottenPipeline:
    """Remove everything that a ledger has of a stopped pipeline; with `dry_run` only count it. The
    heartbeat of the run is watched, for up to 10 seconds. Called again after a crash, it goes on.

    Raises `ConfigurationError` while the pipeline runs, and if events are parked or may be in doubt
    and `unsettled` is not their number.
    """
    client = LedgerClient(ledger.store, pipeline)
    taken = Owners(client).taken()
    if taken is None or taken.renamed_to:  # else it is half forgotten: nothing of it can run
        pipeline = choose_pipeline(ledger, pipeline)
        _refuse_running(ledger, pipeline, "forgetting it")
        client = LedgerClient(ledger.store, pipeline)
    lifecycle = Lifecycle(client, stream_of_pipeline(pipeline))
    counted = lifecycle.count()
    known_as = Owners(client).known_as() or pipeline
    parts = (pipeline, dict(counted.tables), counted.parked, counted.pending, known_as)
    if dry_run:
        return ForgottenPipeline(*parts, done=False)
    half_done = taken is not None and not taken.renamed_to
    if counted.unsettled != (unsettled or 0) and not half_done:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: {counted.parked} events are parked, and {counted.pending} "
            "partitions of an incomplete minibatch are pending. The record of what happened to "
            "their events would be removed too. Resolve them and let the pipeline complete its "
            f"minibatch; or pass --unsettled {counted.unsettled} to forget them too"
        )
    lifecycle.forget(by)
    return ForgottenPipeline(*parts, done=True)


def _refuse_running(ledger: Ledger, name: str, doing: str) -> None:
    status = read_status(ledger, name, watch=True)
    if status.state is RunState.RUNNING:
        raise ConfigurationError(
            f"pipeline {name!r} is running (run {status.run}); stop the query before {doing}"
        )
