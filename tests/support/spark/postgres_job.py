"""A driver script: one query into PostgreSQL in all three ways; arguments: SETTINGS.

The sinks ask at the charge server, where they reach a step, whether their process dies there: also
inside the transaction, between the effect and COMMIT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.events import Chunk
from semel.sinks import Progress, Receipt, Retry, Target
from semel.sinks.postgres import Postgres
from semel.sinks.postgres.session import PostgresSession
from support.spark import faults
from support.spark.query_job import into
from support.spark.settings import Settings

STEPS = ("take.sent", "effect.before", "commit.before", "effect.after")

BOOK = (
    "insert into balances select customer, sum(amount) from semel_batch group by 1"
    " on conflict (customer) do update set balance = balances.balance + excluded.balance"
)
KEEP = "insert into apply select customer, payment_id, amount from semel_batch order by semel_osn"
WAYS: dict[str, dict[str, Any]] = {
    "append": {"table": "append"},
    "apply": {"apply": (KEEP, BOOK)},
    "each": {"each": "insert into each values (%(customer)s, %(payment_id)s, %(amount)s)"},
}
TABLES = "create table balances (customer text primary key, balance bigint not null);" + "".join(
    f"create table {name} (customer text, payment_id bigint, amount bigint, at bigserial);"
    for name in WAYS
)
"""No key forbids a repeat: the tables are the witness."""


@dataclass(frozen=True, kw_only=True)
class MortalPostgres(Postgres):
    """The sink, with the steps at which its process may die."""

    house: str
    steps: tuple[str, ...] = ()

    def open(self, target: Target) -> PostgresSession:
        return MortalPostgresSession(self, target)

    def reach(self, step: str) -> None:
        if step in self.steps:
            faults.reach(self.house, step)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        faults.install(state["house"], state["steps"])


class MortalPostgresSession(PostgresSession):
    """A session that passes its steps aloud."""

    def __init__(self, sink: MortalPostgres, target: Target) -> None:
        super().__init__(sink, target)
        self._reach = sink.reach
        prepared = self._effect.prepared

        def watched(chunk: Chunk) -> Any:
            act = prepared(chunk)

            def acts(connection: Any) -> None:
                self._reach("effect.before")
                act(connection)
                self._reach("commit.before")

            return acts

        self._effect.prepared = watched  # type: ignore[method-assign]

    def take_over(self) -> Progress | None:
        stood = super().take_over()
        self._reach("take.sent")
        return stood

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        receipt = super().deliver_with(chunk, progress)
        self._reach("effect.after")
        return receipt


def sinks(settings: Settings) -> list[MortalPostgres]:
    told = dict(settings.sink_settings)
    steps = tuple(told.pop("steps", ()))
    return [
        MortalPostgres(
            name=name, house=settings.house, steps=steps, retry=Retry(0.1, 0.5, 60), **told, **way
        )
        for name, way in WAYS.items()
    ]


if __name__ == "__main__":
    into(sinks)
