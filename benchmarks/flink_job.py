"""Flink copies topics exactly once, as its arguments say; run by the Python of Flink's own venv.

`python flink_job.py`, and on standard input a line of JSON for each copy (`{"servers": ...,
"given": ..., "taken": ..., ...}`), then `end` to end it; `ended` on standard output
says that it did. All copies run in one JVM, so that the later ones find it warm. It imports nothing
of semel's, and nothing of semel's imports it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any

TABLE = """
create table {name} (k bytes, v bytes) with (
  'connector' = 'kafka',
  'topic' = '{topic}',
  'properties.bootstrap.servers' = '{servers}',
  'key.format' = 'raw', 'key.fields' = 'k',
  'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY',
  {more}
)
"""
SOURCE = """
  'properties.group.id' = 'flink-bench',
  'scan.startup.mode' = 'earliest-offset'{bounded}
"""
SINK = """
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = '{taken}',
  'properties.transaction.timeout.ms' = '600000',
  'properties.linger.ms' = '5',
  'properties.batch.size' = '1000000'
"""


class FlinkCopy:
    """One copy: to what is there now if `bounded`, else for ever."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._ending = False
        self._done = threading.Event()
        table = importlib.import_module("pyflink.table")
        settings = table.EnvironmentSettings.in_streaming_mode()
        environment = table.TableEnvironment.create(settings)
        config = environment.get_config()
        for name, value in {
            "parallelism.default": "2",
            "execution.checkpointing.interval": f"{told['interval_ms']} ms",
            "execution.checkpointing.mode": "EXACTLY_ONCE",
            "execution.checkpointing.dir": f"file://{told['folder']}",
            "taskmanager.memory.managed.size": "64m",
            "taskmanager.memory.network.max": "64m",
        }.items():
            config.set(name, value)
        bounded = ", 'scan.bounded.mode' = 'latest-offset'" if told["bounded"] else ""
        servers = told["servers"]
        source, sink = SOURCE.format(bounded=bounded), SINK.format(**told)
        environment.execute_sql(
            TABLE.format(name="given", topic=told["given"], servers=servers, more=source)
        )
        environment.execute_sql(
            TABLE.format(name="taken", topic=told["taken"], servers=servers, more=sink)
        )
        self._result = environment.execute_sql("insert into taken select k, v from given")
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """End everything where the copy fails by itself."""
        try:
            self._result.wait()
        except Exception:  # noqa: BLE001 - it is reported, and ends the run
            if not self._ending:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        finally:
            self._done.set()

    def end(self) -> None:
        """Cancel it, if it still runs, and wait."""
        self._ending = True
        if not self._done.is_set():
            with suppress(Exception):  # it may end by itself just now
                self._result.get_job_client().cancel().result()
        self._done.wait(60)


def main() -> None:
    """Do what comes in; end when whoever started this is gone: its pipe closes."""
    copy: FlinkCopy | None = None
    for line in sys.stdin:
        if line.strip() != "end":
            copy = FlinkCopy(json.loads(line))
        elif copy is not None:
            copy.end()
            print("ended", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
