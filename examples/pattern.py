"""Deliver alerts that a pattern finds: three failed logins of a user or more, then one that works.

`python examples/pattern.py [FOLDER]` reads three files of logins. Spark keeps the failures of each
user between micro-batches, in RocksDB; the id of an alert is the login that completed the pattern.
`semel status` shows what the state costs. (`transformWithState` needs Spark 4.1 or later.)
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import semel
from semel.spark import make_session

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGINS = ["a- b- a- c+", "a- b+ a+ b-", "b- b- c- b+"]
"""Three files: who logged in, and whether it worked."""


class Intrusions(StatefulProcessor):
    """Counts the failures in a row of one user."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state that Spark keeps for each user."""
        self._failures = handle.getValueState("failures", "count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], _: Any) -> Iterator[Row]:  # noqa: N802
        """Yield an alert for each login that completes the pattern."""
        known = self._failures.get()
        failures = 0 if known is None else int(known[0])
        for row in sorted(rows, key=lambda each: each.login):  # Spark gives them in any order
            if row.worked and failures >= 3:
                yield Row(user=key[0], login=row.login, failures=failures)
            failures = 0 if row.worked else failures + 1
        self._failures.update((failures,))

    def close(self) -> None:
        """Nothing is open."""


def main(folder: Path) -> None:
    """Find the alerts in three files of logins, one start of the query for each."""
    folder = folder.absolute()
    logins, alerted = folder / "logins", folder / "alerted.txt"
    logins.mkdir(parents=True, exist_ok=True)
    spark = make_session("pattern")
    read = spark.readStream.schema("user string, login bigint, worked boolean").json(str(logins))
    found = read.groupBy("user").transformWithState(
        Intrusions(), "user string, login bigint, failures bigint", "append", "None"
    )

    @semel.sink
    def alert(event: semel.Event) -> None:
        with alerted.open("a") as file:
            file.write(f"user {event.entity}: {event.value['failures']} failures, then a login\n")

    for number, each in enumerate(LOGINS):
        rows = [
            {"user": login[0], "login": number * 10 + at, "worked": login[1] == "+"}
            for at, login in enumerate(each.split())
        ]
        (logins / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
        query = (
            semel.deliver(
                found,
                to=alert,
                name="alerts",
                entity="user",
                event="login",
                partitions=1,
                ledger=f"sqlite:///{folder}/ledger.db",
            )
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print(alerted.read_text(), end="")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-pattern-")))
