"""A driver script for several queries at once: `python -m spark.together SETTINGS...`."""

from __future__ import annotations

from spark.rounds import at_once, main

if __name__ == "__main__":
    main(at_once)
