"""`semel rescale`: another number of partitions for a stopped pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.ledger import Ledger
from support.command_line import beats, pipeline_at, read_json, refused, semel

Out = pytest.CaptureFixture[str]


def test_a_pipeline_that_stands_still_gets_another_number_of_partitions(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("SEMEL_LEDGER", url)
    world = pipeline_at(tmp_path / "ledger.db", partitions=1)
    world.partition = "0of1"
    world.minibatch(0, "a1 b2")
    with beats(tmp_path / "ledger.db", away_s=-3_600.0):
        assert "is running (run 1)" in refused(capsys, "rescale", "pay", "4")
    world.driver.beat(ended=True)
    assert read_json(capsys, "rescale", "pay", "4") == {"pipeline": "pay", "partitions": 4}
    assert read_json(capsys, "rescale", "pay", "4") == {"pipeline": "pay", "partitions": 4}
    with Ledger(url) as ledger:
        [(_, row)] = ledger.rows("pipelines")
    assert row["partitions"] == 4
    told = "pay: 8 partitions from the next minibatch on\n"
    assert semel(capsys, "rescale", "pay", "8") == (0, told, "")
    assert "nobody" in refused(capsys, "rescale", "nobody", "4")


@pytest.mark.rows("S14")
def test_entities_are_spread_in_another_way_when_that_is_said(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("SEMEL_LEDGER", url)
    world = pipeline_at(tmp_path / "ledger.db", partitions=1)
    world.partition = "0of1"
    world.minibatch(0, "a1 b2")
    world.driver.beat(ended=True)
    assert "makes 3 partitions, but 4" in refused(capsys, "rescale", "pay", "4", "--range", "b,c")
    both = refused(capsys, "rescale", "pay", "3", "--range", "b,c", "--hash")
    assert "--range or --hash, not both" in both
    assert semel(capsys, "rescale", "pay", "3", "--range", "b,c")[0] == 0
    with Ledger(url) as ledger:
        [(_, row)] = ledger.rows("pipelines")
    assert (row["partitions"], row["routing"]) == (3, {"kind": "range", "bounds": ["b", "c"]})
    assert "spreads its entities by range" in refused(capsys, "rescale", "pay", "5")
    assert "entity 'a' is not an integer" in refused(
        capsys, "rescale", "pay", "2", "--range", "1000"
    )
    assert semel(capsys, "rescale", "pay", "2", "--range", '"1000"')[0] == 0
    with Ledger(url) as ledger:
        [(_, row)] = ledger.rows("pipelines")
    assert row["routing"]["bounds"] == ["1000"]
    assert semel(capsys, "rescale", "pay", "5", "--hash")[0] == 0
    with Ledger(url) as ledger:
        [(_, row)] = ledger.rows("pipelines")
    assert (row["partitions"], row.get("routing")) == (5, None)
