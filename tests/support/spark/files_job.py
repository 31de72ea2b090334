"""A driver script: one query into part files of two kinds; arguments: SETTINGS.

The sinks ask at the charge server, where they reach a step, whether their process dies there: a
worker between claim, file aside and file in its place, the driver around manifest and load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.sinks import Ended, Manifest, PostgresLoad, Retry, Target
from semel.sinks.files import Files
from semel.sinks.files.sink import PartSession
from semel.sinks.files.storage import Folder
from support.spark import faults
from support.spark.query_job import into
from support.spark.settings import Settings

TASK_STEPS = ("claimed", "aside", "placed")
DRIVER_STEPS = ("manifest.before", "manifest.after", "load.after")
TABLE = "create table events (customer text, payment_id bigint, amount bigint)"
"""No key forbids a repeat: the table is the witness."""


@dataclass(frozen=True, kw_only=True)
class MortalFiles(Files):
    """The sink, with the steps at which its process may die."""

    house: str
    steps: tuple[str, ...] = ()

    def open(self, target: Target) -> PartSession:
        made = MortalFilesSession(self, target)
        made.claim()
        self.reach("claimed")
        return made

    def conclude(self, ended: Ended) -> None:
        self.reach("manifest.before")
        super().conclude(ended)
        self.reach("load.after")

    def _manifest(self, ended: Ended, folder: Folder) -> Manifest:
        made = super()._manifest(ended, folder)
        self.reach("manifest.after")
        return made

    def reach(self, step: str) -> None:
        if step in self.steps:
            faults.reach(self.house, step)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        faults.install(state["house"], state["steps"])


class MortalFilesSession(PartSession):
    """A session that passes its steps aloud."""

    def __init__(self, sink: MortalFiles, target: Target) -> None:
        super().__init__(sink, target)
        self._reach = sink.reach

    def finish(self) -> dict[str, Any] | None:
        self._reach("aside")
        placed = super().finish()
        self._reach("placed")
        return placed


def sinks(settings: Settings) -> list[MortalFiles]:
    told = dict(settings.sink_settings)
    load, url = told.pop("load", None), told.pop("url")
    steps = tuple(told.pop("steps", ()))
    loader = None if load is None else PostgresLoad(url=load, table="events")
    words: dict[str, Any] = {"house": settings.house, "retry": Retry(0.1, 0.5, 60), **told}
    return [
        MortalFiles(name="parquet", url=url, steps=steps, then=loader, row_group_rows=7, **words),
        MortalFiles(name="lines", url=url, format="json", steps=steps, **words),
    ]


if __name__ == "__main__":
    into(sinks)
