"""A word of `deliver` of another type is refused with its value, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.errors import ConfigurationError
from semel.spark.checks import require_types


@pytest.mark.parametrize(
    ("word", "value", "says"),
    [
        ("increasing", "yes", "increasing must be True or False, got 'yes'"),
        ("accept_gap", "no", "accept_gap must be True or False, got 'no'"),
        ("order", "no", "order must be True or False, got 'no'"),
        ("fail_on_parked", 0, "fail_on_parked must be True or False, got 0"),
        ("remember_s", "7 days", "remember_s must be a number of seconds, not negative, got '7"),
        ("remember_s", -5, "remember_s must be a number of seconds, not negative, got -5"),
        ("remember_s", float("nan"), "got nan"),
        ("partitions", "4", "partitions must be a whole number of at least 1, got '4'"),
        ("partitions", 0, "partitions must be a whole number of at least 1, got 0"),
        ("partitions", True, "got True"),
        ("entity", ["customer"], r"entity must be the name of one column.* got \['customer'\]"),
        ("event", 1, "event must be the name of a column, or a list of names, got 1"),
        ("event", [], r"got \[\]"),
        ("order_by", ["a", 2], "order_by must be the name of a column, or a list of names"),
        ("ledger", Path("m.db"), "got a path. Write it as a URL: ledger='sqlite:///m.db'"),
        ("ledger", b"postgresql://u:hush@h/d", "got bytes$"),
    ],
)
def test_a_word_of_another_type_is_refused(word: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"pipeline 'pay': .*{says}") as refused:
        require_types("pay", {word: value})
    assert "hush" not in str(refused.value)


def test_words_of_their_types_pass() -> None:
    words = {
        "entity": "customer.id",
        "event": ("a", "b"),
        "order_by": None,
        "ledger": None,
        "partitions": 8,
        "order": False,
        "increasing": True,
        "accept_gap": False,
        "fail_on_parked": True,
        "remember_s": 0,
    }
    require_types("pay", words)
