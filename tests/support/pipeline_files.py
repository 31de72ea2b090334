"""Valid pipeline files to break, and the modules that they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from semel.pipeline import Pipeline

Build = Callable[..., Pipeline]
"""Writes a file and builds its pipeline; variables of the environment by name."""

Wrong = Callable[..., list[str]]
"""Writes a file and returns what is wrong with it."""

MODULE = '''
from dataclasses import dataclass

import semel
from semel.protocol import Capability
from semel.sinks import Http, Sink


@dataclass(frozen=True, kw_only=True)
class Own(Sink):
    place: str
    speed: "complex | None" = None

    @property
    def capability(self):
        return Capability.OPAQUE

    def open(self, target):
        raise NotImplementedError


made = Http(name="made", url="https://service.example/made")
number = 7


def charge(event):
    """A plain function."""


@semel.sink(window=2)
def decorated(event):
    """A sink."""


def arrived(event):
    return True


def select(source):
    return source


def spread(entity):
    return 0
'''

FULL = """\
# every section, and many ways to write a value
[pipeline]
name = "charges"
ledger = "sqlite:///charges.db"
checkpoint = "checkpoints/charges"
partitions = 4
remember = "12h"
accept_gap = false

[source]
format = "json"
schema = '''
customer string,
payment_id bigint'''

[source.options]
path = "payments"
maxFilesPerTrigger = 2
multiLine = false

[transform]
sql = ["set spark.x = 1", "select * from large"]

[transform.views]
positive = "select * from source where amount > 0"
large = \"\"\"
select * from positive
where amount > 100\"\"\"

[identity]
entity = "customer"
event = ["payment_id", "part"]
increasing = false
order_by = "at"

[[sinks]]
type = "http"
url = "https://bank.example/charge/{customer}"
headers = { Accept = "text/plain", "X-Shop" = "a" }
auth = { type = "basic", user = "u", password = "some-password" }
body = { customer = "{customer}", parts = ["{part}", 1, true] }
window = 2
on_doubt = "hold"
timeout_s = 4.5
retry = { for_s = 10, first_s = 0.5 }

[[sinks]]
type = "files"
name = "copy"
url = "out"
format = "parquet"
then = { type = "postgres-load", url = "postgresql://u:pw@127.0.0.1/db", table = "t" }

[[sinks]]
type = "kafka"
servers = "127.0.0.1:9092"
topic = "charges"
headers = { trace = "trace_id" }
config = { "linger.ms" = 5, "security.protocol" = "ssl" }
stamps = ["osn", "event"]

[spark]
master = "local[2]"
log_level = "OFF"
settings = { "spark.sql.shuffle.partitions" = 2, "spark.ui.enabled" = false }

[trigger]
every = "500ms"
"""

SEVERAL = """\
pipeline.name = 'totals'
pipeline.checkpoint = 'checkpoints/totals'
pipeline.partition_by = { range = [1000, 2000] }

[sources.orders]
format = "rate"
[sources.orders.options]
rowsPerSecond = 5

[sources.customers]
format = "parquet"
options = { path = "customers" }
static = true

[transform]
python = "fuzz_module:select"

[identity]
identity = "counter"
entity = "value"

[[sinks]]
type = "redis"
url = "redis://127.0.0.1:6379/0"
command = "HINCRBY"
key = "total:{value}"
arguments = ["amount", "1"]
on_reject = "block"

[[sinks]]
type = "postgres"
url = "postgresql://u@127.0.0.1/db"
apply = "insert into t select value from semel_batch"
schema = "public"
deadline_s = 20

[[sinks]]
type = "fuzz_module:charge"
window = 3
on_doubt = "fuzz_module:arrived"

[[sinks]]
type = "fuzz_module:decorated"
name = "other"

[[sinks]]
type = "fuzz_module:made"

[[sinks]]
type = "fuzz_module:Own"
place = "here"
lease_s = 5
"""

VALID = {"full": FULL, "several": SEVERAL}


def write_module(folder: Path) -> None:
    """Write the module that the files name."""
    (folder / "fuzz_module.py").write_text(MODULE)
