"""A driver script that delivers to services over HTTP; `python -m support.spark.http_job SETTINGS`.

`sink_settings` are the settings of each sink by its name; `steps` are the ledger's, as everywhere.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.sinks.http import Http
from semel.spark.deliver import deliver
from support.spark import faults
from support.spark.query_job import say, session, source
from support.spark.settings import Settings


@dataclass(frozen=True, kw_only=True)
class WatchedHttp(Http):
    """A sink whose process is watched at the ledger's steps, wherever it wakes up."""

    house: str
    steps: tuple[str, ...] = ()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        faults.install(state["house"], state["steps"])


def main() -> None:
    # Workers find the class by its module, so it is not the one of `__main__`.
    from support.spark.http_job import WatchedHttp as Imported

    settings = Settings.load(Path(sys.argv[1]))
    told = dict(settings.sink_settings)
    steps = tuple(told.pop("steps", ()))
    query = (
        deliver(
            source(settings, session(settings)),
            to=[
                Imported(name=name, house=settings.house, steps=steps, **each)
                for name, each in told.items()
            ],
            name=settings.name,
            ledger=settings.ledger,
            **settings.identity,
            **settings.words,
        )
        .option("checkpointLocation", settings.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    say(f"started {query.id}")
    query.awaitTermination()
    say("finished")


if __name__ == "__main__":
    main()
