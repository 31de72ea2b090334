"""The checkpoint is lost, restored from a copy, or another's: nothing is repeated or left out."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from semel import Ledger
from semel.errors import ConfigurationError
from semel.spark import checkpoints
from support.spark.driver_scripts import Bed, assert_once, assert_ordered, names
from support.spark.positions_table import write_table
from support.spark.sessions import Desk
from support.spark.settings import Settings

POSITION = {"identity": "position"}
GIVEN = {"entity": "customer", "event": "payment_id"}
IDENTITIES: dict[str, dict[str, Any]] = {
    "position": POSITION,
    "given": GIVEN,
    "increasing": {**GIVEN, "increasing": True},
}
LOST = "the checkpoint was lost or replaced; generation"


def settings_of(desk: Bed, identity: str, **changes: Any) -> Settings:
    source = "positions" if identity == "position" else "files"
    limit = 10 if source == "positions" else 1
    words = {"identity": IDENTITIES[identity], "source": source, "max_files": limit}
    return desk.settings(**{**words, **changes})


def grow(desk: Bed, identity: str, rounds: int) -> None:
    """Let the input be as it is after so many rounds: two or three micro-batches each."""
    if identity == "position":
        ends = 10 * rounds
        desk.positions({0: [at for at in range(ends) if at % 7], 1: list(range(ends))})
    else:
        desk.payments(files=2, rows=10)


@pytest.mark.rows("A1", "A10", "N4")
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_checkpoint_lost_again_and_again_repeats_nothing(
    desk: Desk, caplog: pytest.LogCaptureFixture, identity: str
) -> None:
    before = 0
    for number in (1, 2, 3):
        grow(desk, identity, number)
        desk.deliver(settings_of(desk, identity, sink="transactional", max_files=10 * number))
        assert_once(desk.charges(), desk.expected)
        assert_ordered(desk.charges())
        assert (f"{LOST} {number} continues" in caplog.text) == (number > 1)
        assert skipped_in(caplog.text) == before
        caplog.clear()
        before = len(desk.expected)
        desk.lose_checkpoint()


def skipped_in(log: str) -> int:
    """How many events semel said it skips."""
    told = r"events not sent, because handled .* before the checkpoint was lost: (\d+)"
    return sum(int(found) for found in re.findall(told, log))


@pytest.mark.rows("O7", "O22")
@pytest.mark.parametrize("identity", IDENTITIES)
def test_the_positions_of_a_checkpoint_on_another_file_system_are_in_the_ledger(
    desk: Desk, identity: str
) -> None:
    """A view of Hadoop is another file system for Spark; what is written is in a local folder."""
    elsewhere = desk.folder / "elsewhere"
    elsewhere.mkdir()
    place = f"place-{desk.number}"
    desk.spark.conf.set(f"fs.viewfs.mounttable.{place}.link./state", elsewhere.as_uri())
    settings = settings_of(desk, identity, checkpoint=f"viewfs://{place}/state/checkpoint")
    assert settings.ledger is not None
    for number in (1, 2):
        grow(desk, identity, number)
        desk.deliver(settings)
        newest = max((elsewhere / "checkpoint/offsets").glob("[0-9]*"), key=lambda at: int(at.name))
        with Ledger(settings.ledger) as ledger:
            inputs = ledger.summary(desk.name).inputs
        assert list(inputs) == newest.read_text().splitlines()[checkpoints.OFFSETS_FROM :]
        assert inputs
    assert_once(desk.charges(), desk.expected)
    assert_ordered(desk.charges())


def test_the_positions_of_a_backlog_with_many_markers_are_kept_without_the_markers(
    tmp_path: Path,
) -> None:
    at = {"orders": {"0": 10**9, "1": 10**9}}
    offsets = {"marker": 900, "positions": at, "borders": [[each, at] for each in range(500)]}
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/3").write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    [text] = checkpoints.inputs(str(tmp_path), 3, lambda: None)
    assert json.loads(text) == {"marker": 900, "positions": at}


def test_a_counted_id_does_not_survive_a_lost_checkpoint_and_the_choice_is_named(
    desk: Desk,
) -> None:
    desk.payments(files=2, rows=10)
    words = {"identity": {"identity": "counter", "entity": "customer"}}
    desk.deliver(desk.settings(**words))
    before = desk.charges()
    assert len(before) == 20
    desk.lose_checkpoint()
    desk.payments(files=1, rows=10)
    told = desk.refused(desk.settings(**words))
    assert told.startswith(f"ConfigurationError: pipeline {desk.name!r}: the checkpoint was lost")
    assert "Restore the checkpoint, or start under a new name" in told
    assert desk.charges() == before


def test_a_start_that_is_refused_leaves_no_pipeline_in_the_ledger(desk: Desk) -> None:
    desk.payments(files=1, rows=4)
    desk.deliver(desk.settings())
    desk.payments(files=1, rows=4)
    other = f"sqlite:///{desk.folder / 'other.db'}"
    told = desk.refused(desk.settings(ledger=other))
    assert "the ledger does not know this pipeline" in told
    with Ledger(other) as ledger:
        assert ledger.pipelines() == []
    desk.deliver(desk.settings())
    assert_once(desk.charges(), desk.expected)


def test_a_gap_stops_the_query_and_names_where_to_start(desk: Desk) -> None:
    settings = settings_of(desk, "position")
    desk.positions({0: list(range(10)), 1: list(range(4))})
    desk.deliver(settings)
    before = desk.charges()
    desk.lose_checkpoint()
    expected = list(desk.expected)
    desk.positions({0: list(range(12, 16)), 1: list(range(6))})
    told = desk.refused(settings)
    assert told.startswith(f"Diverged: pipeline {desk.name!r}")
    assert "12" in told
    assert "2 events would be skipped" in told
    where = told.partition(".option('startingOffsets', '")[2].partition("'")[0]
    assert json.loads(where) == {"t": {"0": 10}}
    assert "accept_gap=True" in told
    assert [charge for charge in desk.charges() if charge.entity == "t/0"] == [
        charge for charge in before if charge.entity == "t/0"
    ]
    desk.deliver(settings_of(desk, "position", words={"accept_gap": True}))
    later = [("t/0", at) for at in range(12, 16)] + [("t/1", at) for at in (4, 5)]
    assert_once(desk.charges(), [*expected, *later])


def test_a_topic_made_anew_is_refused_when_it_reaches_what_was_delivered(desk: Desk) -> None:
    settings = settings_of(desk, "position")
    desk.positions({0: list(range(10))})
    desk.deliver(settings)
    before = desk.charges()
    desk.lose_checkpoint()
    write_table(desk.table, {0: [(at, "other", -at) for at in range(12)]})
    told = desk.refused(settings_of(desk, "position", max_files=20))
    assert told.startswith(f"Diverged: pipeline {desk.name!r}")
    assert "event 9 was delivered with digest" in told
    assert "and arrived again with" in told
    assert "start with a new pipeline name" in told
    assert desk.charges() == before


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_checkpoint_restored_from_an_older_copy_repeats_nothing(
    desk: Desk, identity: str
) -> None:
    checkpoint = desk.folder / "checkpoint"
    copies = []
    settings = settings_of(desk, identity, sink="transactional")
    for number in range(1, 4):
        grow(desk, identity, number)
        desk.deliver(settings)
        copies.append(shutil.copytree(checkpoint, desk.folder / f"copy-{number}"))
    assert_once(desk.charges(), desk.expected)
    for number, copy in enumerate(reversed(copies), 4):
        shutil.rmtree(checkpoint)
        shutil.copytree(copy, checkpoint)
        if number % 2:
            grow(desk, identity, number)
        desk.deliver(settings)
        assert_once(desk.charges(), desk.expected)
        assert_ordered(desk.charges())


@pytest.mark.rows("A11")
def test_a_micro_batch_that_is_planned_anew_delivers_what_is_new_in_it(desk: Desk) -> None:
    """The batch after a restored checkpoint holds more than the one that was delivered."""
    checkpoint = desk.folder / "checkpoint"
    settings = settings_of(desk, "position", sink="transactional", max_files=4)
    desk.positions({0: list(range(4))})
    desk.deliver(settings)
    copy = shutil.copytree(checkpoint, desk.folder / "copy")
    desk.positions({0: list(range(8))})
    desk.deliver(settings)
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    desk.positions({0: list(range(30)), 1: list(range(5))})
    desk.deliver(settings_of(desk, "position", sink="transactional", max_files=100))
    assert_once(desk.charges(), desk.expected)
    assert_ordered(desk.charges())


def test_the_checkpoint_of_another_query_is_not_taken_for_ones_own(desk: Desk) -> None:
    desk.positions({0: list(range(8))})
    desk.deliver(settings_of(desk, "position"))
    desk.positions({0: list(range(20))})
    other = str(desk.folder / "other")
    desk.deliver(settings_of(desk, "position", name=f"others-{desk.name}", checkpoint=other))
    ours = [charge for charge in desk.charges() if (charge.key or "").startswith(f"{desk.name}/")]
    desk.positions({0: list(range(24))})
    told = desk.refused(settings_of(desk, "position", checkpoint=other))
    assert told.startswith(f"Diverged: pipeline {desk.name!r}: the checkpoint was lost")
    assert "t/0 begins at offset 20 and the ledger continues at 8 (12 offsets are skipped)" in told
    assert """'startingOffsets', '{"t": {"0": 8}}'""" in told
    after = [charge for charge in desk.charges() if (charge.key or "").startswith(f"{desk.name}/")]
    assert after == ours
    desk.deliver(settings_of(desk, "position"))
    after = [charge for charge in desk.charges() if (charge.key or "").startswith(f"{desk.name}/")]
    assert_once(after, desk.expected)


# -- crashed half-way, and then the checkpoint is lost


CRASHED = [
    ("opaque", "position"),
    ("opaque", "given"),
    ("opaque", "increasing"),
    ("repeatable", "given"),
    ("probing", "increasing"),
    ("transactional", "position"),
    ("transactional", "given"),
    ("sequenced", "increasing"),
    ("sequenced", "position"),
]


@pytest.mark.rows("A9", "N4", "N11")
@pytest.mark.parametrize(("sink", "identity"), CRASHED)
def test_a_checkpoint_lost_after_a_crash_repeats_nothing(
    desk: Desk, sink: str, identity: str
) -> None:
    """Its worker dies in each of the four attempts Spark makes, so the query ends half-way."""
    grow_one(desk, identity, 2)
    words = {} if identity == "position" else {"words": {"partitions": 1}}
    given = {} if sink == "opaque" else {"chunk_rows": 2, "lease_s": 0.5, "deadline_s": 1.0}
    watched = {**given, "steps": ["effect.after"]}
    settings = settings_of(desk, identity, sink=sink, sink_settings=watched, max_files=20, **words)
    desk.house.arm("effect.after", after=3, times=4)
    with pytest.raises(StreamingQueryException):
        desk.deliver(settings)
    assert 0 < len(desk.charges()) < len(desk.expected)
    desk.lose_checkpoint()
    grow_one(desk, identity, 3)
    again = settings_of(desk, identity, sink=sink, sink_settings=given, max_files=7, **words)
    desk.deliver(again)
    desk.assert_told(again, in_doubt_max=4 if sink == "opaque" else 0)
    charged = set(names(desk.charges()))
    assert again.ledger is not None
    with Ledger(again.ledger) as ledger:
        for entity, event in desk.expected:
            (trace,) = ledger.find(desk.name, entity, event)
            # What was swept with its generation is known by its watermark only.
            sure = {"delivered", "handled"} if (entity, event) in charged else {"parked"}
            assert trace.state in {*sure, "in doubt"}, f"{entity}/{event}: {trace}"
            assert trace.state != "in doubt" or sink == "opaque"


def grow_one(desk: Desk, identity: str, rounds: int) -> None:
    """As `grow`, with one source partition."""
    grow(desk, identity, rounds)
    if identity == "position":
        desk.positions({0: list(range(10 * rounds))})


# -- what Spark writes


@pytest.fixture
def checkpoint(desk: Desk) -> Path:
    """An empty checkpoint folder."""
    folder = desk.folder / "written"
    for name in ("sources/0", "offsets"):
        (folder / name).mkdir(parents=True)
    return folder


METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1794765945180,"conf":{"a":"b"}}'

WRITTEN: dict[str, tuple[str, str, dict[str, int] | None]] = {
    "Kafka's own start": (
        "sources/0/0",
        '\0v1\n{"payments":{"1":12,"0":7},"a.b-c":{"0":0}}',
        {"payments/0": 7, "payments/1": 12, "a.b-c/0": 0},
    ),
    "Kafka's own start, with an end of line": (
        "sources/0/0",
        '\0v1\n{"payments":{"0":7}}\n',
        {"payments/0": 7},
    ),
    "offsets of one source": (
        "offsets/4",
        f'v1\n{METADATA}\n{{"payments":{{"0":70,"1":12}}}}',
        {"payments/0": 70, "payments/1": 12},
    ),
    "files": ("offsets/4", f'v1\n{METADATA}\n{{"logOffset":3}}', None),
    "rate": ("offsets/4", f'v1\n{METADATA}\n{{"offset":3,"timestamp":5}}', None),
    "a number": ("offsets/4", f"v1\n{METADATA}\n17", None),
    "nothing after a source that has none": ("offsets/4", f"v1\n{METADATA}\n-", None),
    "an empty file": ("offsets/4", "", None),
    "a log of files": ("sources/0/0", 'v1\n{"path":"file:///a","timestamp":1,"batchId":0}', None),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_where_spark_begins_is_read_as_spark_writes_it(
    desk: Desk, checkpoint: Path, case: str
) -> None:
    name, text, found = WRITTEN[case]
    (checkpoint / name).write_text(text)
    batch = 0 if name.startswith("sources") else 5
    assert checkpoints.starts(desk.spark, str(checkpoint), batch) == found
    assert checkpoints.starts(desk.spark, f"file://{checkpoint}", batch) == found


def test_a_checkpoint_that_does_not_say_where_it_begins_says_nothing(
    desk: Desk, checkpoint: Path
) -> None:
    assert checkpoints.starts(desk.spark, str(checkpoint), 0) is None
    assert checkpoints.starts(desk.spark, str(checkpoint), 5) is None
    assert checkpoints.starts(desk.spark, str(checkpoint / "nowhere"), 0) is None
    with pytest.raises(ConfigurationError, match="use a checkpointLocation that the driver can"):
        checkpoints.query_id(desk.spark, str(checkpoint))
    (checkpoint / "metadata").write_text('{"id":"dbd416b6-b199-4f7e-a27d-82a49e3ff6a3"}')
    found = checkpoints.query_id(desk.spark, str(checkpoint))
    assert found == "dbd416b6-b199-4f7e-a27d-82a49e3ff6a3"
