"""Looking at a ledger changes nothing, also where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from semel.errors import ConfigurationError
from semel.ledger import Ledger


def test_a_path_that_was_mistyped_is_not_an_empty_ledger(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no ledger at"):
        Ledger(f"sqlite:///{tmp_path}/typo.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [None, 5])
def test_what_is_no_ledger_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="is not a ledger"):
        Ledger(cast("Any", wrong))
