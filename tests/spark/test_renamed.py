"""A renamed pipeline on real Spark: the destination keeps its progress under the first name."""

from __future__ import annotations

from collections import Counter

import pytest

from semel.errors import ConfigurationError
from semel.operate import open_ledger, rename_pipeline, status
from support.spark.driver_scripts import names
from support.spark.sessions import Desk


def test_a_renamed_pipeline_goes_on_where_it_was_and_repeats_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "WATCH_S", 0.4)
    desk.payments(files=2, rows=10)
    settings = desk.settings(sink="transactional")
    assert settings.ledger is not None
    desk.deliver(settings)
    new = f"{desk.name}-charges"
    with open_ledger(settings.ledger) as ledger:
        assert rename_pipeline(ledger, desk.name, new, by="ann").known_as == desk.name
    with pytest.raises(ConfigurationError, match=r"was renamed to .* by ann; use that name"):
        desk.deliver(desk.settings(sink="transactional"))
    desk.payments(files=1, rows=10)
    desk.deliver(desk.settings(sink="transactional", name=new))
    desk.lose_checkpoint()
    desk.deliver(desk.settings(sink="transactional", name=new))
    assert Counter(names(desk.charges())) == Counter(dict.fromkeys(desk.expected, 1))
