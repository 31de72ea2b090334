"""A driver script for several queries at once; arguments: SETTINGS..."""

from __future__ import annotations

from support.spark.sequential_job import at_once, main

if __name__ == "__main__":
    main(at_once)
