"""A job of Flink's that copies a topic exactly once; run by the Python of Flink's own venv.

`python flink_job.py '{"servers": ..., "given": ..., "taken": ..., ...}'`. It imports nothing of
semel's, and nothing of semel's imports it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
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


def listen() -> None:
    """End when whoever started this is gone: its pipe closes."""
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Copy `given` to `taken`; end with what is there now if `bounded`, else go on for ever."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    threading.Thread(target=listen, daemon=True).start()
    table = importlib.import_module("pyflink.table")
    settings = table.EnvironmentSettings.in_streaming_mode()
    environment = table.TableEnvironment.create(settings)
    config = environment.get_config()
    for name, value in {
        "pipeline.jars": f"file://{told['jar']}",
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
    environment.execute_sql("insert into taken select k, v from given").wait()


if __name__ == "__main__":
    main()
