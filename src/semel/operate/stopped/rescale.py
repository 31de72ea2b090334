"""Rescaling: a stopped pipeline spreads its entities over another number of partitions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.ledger import ROUTING, LedgerClient, Owners
from semel.ledger import rescale_pipeline as rescale_in_ledger
from semel.operate.ledgers import choose_pipeline
from semel.operate.status import RunState, read_status

if TYPE_CHECKING:
    from semel.events import ByRange
    from semel.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A pipeline and its number of partitions from the next minibatch on."""

    pipeline: str
    partitions: int

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


def rescale_pipeline(
    ledger: Ledger,
    pipeline: str,
    partitions: int,
    routing: ByRange | None = None,
    *,
    by_hash: bool = False,
) -> Rescaled:
    """Spread the entities of a stopped pipeline over `partitions` from the next minibatch on: by
    `routing`, or by their hash. May be repeated. The heartbeat of the run is watched, for up to 10
    seconds.

    Raises `ConfigurationError` while the pipeline is running, when its last minibatch is not
    complete, when `routing` has another number of partitions, and when the pipeline spreads its
    entities by range or directory and neither `routing` nor `by_hash` is given.
    """
    name = choose_pipeline(ledger, pipeline)
    status = read_status(ledger, name, watch=True)
    if status.state is RunState.RUNNING:
        raise ConfigurationError(
            f"pipeline {name!r} is running (run {status.run}); stop the query before rescaling"
        )
    client = LedgerClient(ledger.store, name)
    if routing is not None and routing.partitions != partitions:
        bounds = ",".join(map(str, routing.bounds))
        raise ConfigurationError(
            f"the range {bounds} makes {routing.partitions} partitions, but {partitions} were "
            "asked for; pass matching values"
        )
    known = (Owners(client).described() or {}).get(ROUTING)
    if known is not None and routing is None and not by_hash:
        raise ConfigurationError(
            f"pipeline {name!r} spreads its entities by {known['kind']}: pass --range BOUNDS or "
            "--hash. To use another directory, start a new pipeline under another name"
        )
    rescale_in_ledger(client, partitions, routing)
    return Rescaled(name, partitions)
