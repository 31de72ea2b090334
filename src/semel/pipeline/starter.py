"""The pipeline file that `semel init` writes, and the sample that it reads.

Always true: no file that exists is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path as FilePath

SAMPLE = "payments"
FILES = 4
ROWS = 50

STARTER = """\
# A semel pipeline: from a stream of Spark to destinations, each event exactly once.
#
#   semel check {file}      find mistakes, without Spark
#   semel explain {file}    what is promised, in words
#   semel run {file}        run it; Ctrl-C ends it with nothing in doubt; start it again at any time
#
# Relative paths start at the folder of this file. ${{NAME}} is a variable of the environment, and
# ${{file:PATH}} the content of a file: for passwords. Every key: docs/reference/pipeline-file.md

[pipeline]
name = "charges"                        # its name in the ledger; only `semel rename` changes it
ledger = "sqlite:///charges.db"         # what was delivered is recorded here
checkpoint = "checkpoints/charges"      # how far Spark has read the source

[source]
format = "json"                         # any format of Spark: json, kafka, rate, ...
schema = "customer string, payment_id bigint, amount bigint"

[source.options]
path = "payments"                       # a folder; new files in it are read while it runs
maxFilesPerTrigger = 1

[transform]
sql = "select * from source where amount > 0"

[identity]                              # two rows with the same ids are the same event
entity = "customer"
event = "payment_id"

[[sinks]]                               # one table for each destination
type = "files"                          # or http, postgres, redis, kafka, or "module:function"
url = "delivered"
format = "json"

# [[sinks]]
# type = "http"
# url = "https://bank.example/charge"
# headers = {{ Authorization = "Bearer ${{BANK_TOKEN}}" }}
# idempotency = true                    # if the service absorbs a repeat by its Idempotency-Key

# [spark]
# master = "local[4,4]"
# settings = {{ "spark.sql.shuffle.partitions" = 8 }}
"""


def write_starter(file: FilePath) -> list[FilePath]:
    """Write a pipeline file and sample payments beside it; return what was written.

    Raises `ConfigurationError` if the file exists. A folder of payments that exists is left alone.
    """
    if file.suffix != ".toml":
        raise ConfigurationError(f"{file}: the name of a pipeline file ends with .toml")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as written:
            written.write(STARTER.format(file=file.name))
    except FileExistsError:
        raise ConfigurationError(
            f"{file} exists, and is not overwritten; name another file"
        ) from None
    folder = file.parent / SAMPLE
    return [file, *([] if folder.exists() else _write_sample(folder))]


def _write_sample(folder: FilePath) -> list[FilePath]:
    folder.mkdir()
    for number in range(FILES):
        lines = [
            f'{{"customer": "c{payment % 7}", "payment_id": {payment}, "amount": {payment % 9}}}\n'
            for payment in range(number * ROWS, (number + 1) * ROWS)
        ]
        (folder / f"{number:04}.json").write_text("".join(lines), "utf-8")
    return [folder]
