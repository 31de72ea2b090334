"""The versions of the rules that decide event identity.

- A rule is never edited: a changed one gets the next number, and a pipeline's ledger records the
  versions that it began with.
"""

from __future__ import annotations

DIGEST = 1
"""How content is hashed (`digests`): xxh3_128; streams of nulls, lengths and values."""

ORDER = 1
"""How a partition is ordered (`partitioning.sort`): nulls first, text by bytes, NaN last."""

BUCKET = 1
"""How an entity finds its partition (`partitioning.bucket`): XXH64 of its text form, modulo N."""


def versions() -> dict[str, int]:
    """Return the rule versions in force, as an identity records them in the ledger."""
    return {"bucket": BUCKET, "digest": DIGEST, "order": ORDER}
