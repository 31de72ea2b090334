"""Looking at a ledger changes nothing, also where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from semel.errors import ConfigurationError
from semel.ledger import Ledger, open_store
from support.ledger.one_pipeline import LedgerWorld, request


def test_a_path_that_was_mistyped_is_not_an_empty_ledger(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no ledger at"):
        Ledger(f"sqlite:///{tmp_path}/typo.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [None, 5])
def test_what_is_no_ledger_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="ledger must be a URL, got"):
        Ledger(cast("Any", wrong))


def test_a_table_that_is_none_is_refused_with_those_that_are(world: LedgerWorld) -> None:
    with (
        Ledger(world.store) as ledger,
        pytest.raises(ConfigurationError, match="no table 'nonsense'; use one of pipelines,"),
    ):
        ledger.rows("nonsense")


def test_a_pipeline_that_never_ran_is_refused_with_those_that_did(world: LedgerWorld) -> None:
    with Ledger(world.store) as ledger:
        with pytest.raises(ConfigurationError, match="it has none at all"):
            ledger.sinks("typo")
        world.begin().open(request(0))
        for look in (
            lambda: ledger.sinks("typo"),
            lambda: ledger.summary("typo"),
            lambda: ledger.find("typo", "a", 1),
            lambda: ledger.find("typo", "a", 1, "charge"),
            lambda: ledger.parked("typo"),
        ):
            with pytest.raises(ConfigurationError, match=r"no pipeline 'typo'.*it has 'pay'"):
                look()
        with pytest.raises(ConfigurationError, match="has no sink 'mail': it has 'charge'"):
            ledger.find("pay", "a", 1, "mail")
        assert ledger.summary("pay").run == 1


def test_a_ledger_is_closed_at_the_end_of_its_block(world: LedgerWorld) -> None:
    closed: list[bool] = []
    world.store.close = lambda: closed.append(True)  # type: ignore[method-assign]
    with Ledger(world.store):
        pass
    assert closed == [True]


def test_a_scheme_that_is_nearly_right_is_told_the_right_one() -> None:
    with pytest.raises(ConfigurationError, match="write postgresql:// instead of postgres://"):
        open_store("postgres://u:secret@h/d")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p:x@h:5432/d",
        "postgresql://u:se%2Fcr:x@h/d",
        "postgresql://h1:1,h2:2/d?application_name=a:b",
        "postgresql://[::1]:5432/d",
        "postgresql://[::1]/d",
        "postgresql:///d",
        "postgresql://u@/d?host=/tmp",
    ],
)
def test_a_port_is_not_looked_for_where_none_is(url: str) -> None:
    open_store(url).close()
