"""A pipeline file as an application of Spark: `python -m semel.pipeline FILE [OPTIONS]`.

spark-submit takes the path of this file as the application.
"""

from __future__ import annotations

import sys
from pathlib import Path

# As an application Python searches this folder first, where modules of semel would hide others.
sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != Path(__file__).parent]

USAGE = "use: python -m semel.pipeline FILE [--once] [--log-format=json]"
ONCE, JSON_LOGS = "--once", "--log-format=json"


def main(arguments: list[str]) -> int:
    """Run the pipeline of a file; return the exit status, as `semel run` does."""
    from semel.errors import SemelError
    from semel.pipeline import Lines, Silent, build, exit_status, read_file, run

    files = [each for each in arguments if each not in (ONCE, JSON_LOGS)]
    as_json = JSON_LOGS in arguments
    if len(files) != 1 or files[0].startswith("-"):
        _write(USAGE)
        return 2
    try:
        pipeline = build(read_file(files[0]))
        progress = Silent() if as_json else Lines(_write)
        ended, status = run(pipeline, progress, once=ONCE in arguments, json_logs=as_json)
    except SemelError as error:
        for line in str(error).splitlines():
            _write(f"semel: {line}")
        return exit_status(error)
    _write(f"{pipeline.name}: {ended.value}")
    return status


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
