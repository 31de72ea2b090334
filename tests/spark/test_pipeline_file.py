"""Pipeline files on real Spark: SQL and Python, drained, submitted, wrong.

`tests/test_wheel.py` has the quick start by the letter, killed half-way.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import semel
from semel.pipeline import __main__ as application
from semel.streams import Inbox, NewEvent
from semel.verify.demo.standalone import spark_home
from semel.verify.process_group import ProcessGroup
from support.spark.driver_scripts import wait_for
from support.spark.pipeline_place import CHARGE, SLOW_CHARGES, TIMEOUT_S, PipelinePlace

SECRET = "hunter2-hunter2"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[PipelinePlace]:
    with ProcessGroup("pipeline-file") as group:
        yield PipelinePlace(tmp_path, group)


MODULE = f"""{CHARGE}

def large(source):
    return source.where("amount > 5")


def broken(event):
    raise semel.Rejected(token)
"""

TWO_SINKS = """
[pipeline]
name = "charges"
ledger = "sqlite:///charges.db"
checkpoint = "checkpoints/charges"
partitions = 2

[source]
format = "json"
schema = "customer string, payment_id bigint, amount bigint"
options = { path = "payments", token = "${TOKEN}" }

[transform]
sql = "select c.* from large_payments c join chosen using (customer)"

[transform.views]
large_payments = "select * from source where amount > 5"
chosen = "select explode(array('c0', 'c1', 'c2', 'c3')) as customer"

[identity]
entity = "customer"
event = "payment_id"

[[sinks]]
type = "own_sinks:charge"

[[sinks]]
type = "files"
url = "out"
format = "json"

[spark]
settings = { "spark.app.secret" = "${TOKEN}" }
"""


def test_views_of_sql_two_sinks_and_a_function_run_once_and_no_secret_is_shown(
    place: PipelinePlace,
) -> None:
    ids = place.payments(3, 30)
    expected = [each for each in ids if each % 9 + 1 > 5 and each % 5 < 4]
    (place.folder / "own_sinks.py").write_text(MODULE)
    file = place.folder / "charges.toml"
    file.write_text(TWO_SINKS)
    place.variables = {"TOKEN": SECRET}
    run = place.start("run", str(file), "--once", "--json")
    run.finished(TIMEOUT_S)
    answer = json.loads(run.said()[run.said().rindex("\n{") :])
    assert answer == {
        "pipeline": "charges",
        "ended": "finished",
        "delivered": 2 * len(expected),
        "in_doubt": 0,
        "parked": 0,
    }
    assert Counter(place.charged()) == Counter(expected)
    assert sorted(place.delivered("out")) == expected
    assert SECRET not in run.said()
    for each in place.folder.rglob("*"):
        assert not each.is_file() or SECRET.encode() not in each.read_bytes(), each


FROM_INBOX = """
[pipeline]
name = "charges"
ledger = "sqlite:///charges.db"
checkpoint = "checkpoints/charges"

[source]
format = "semel.inbox"
options = { stream = "orders" }

[transform]
sql = "select entity, event, cast(value as string) as amount from source"

[identity]
entity = "entity"
event = "event"

[[sinks]]
type = "own_sinks:charge"
"""


@pytest.mark.needs("sources")
@pytest.mark.rows("S1", "S17", "S22")
def test_a_file_reads_the_inbox_of_its_ledger_as_a_registered_reader(place: PipelinePlace) -> None:
    (place.folder / "own_sinks.py").write_text(MODULE)
    file = place.folder / "charges.toml"
    file.write_text(FROM_INBOX)
    with Inbox(f"sqlite:///{place.folder / 'charges.db'}", "orders", partitions=1) as inbox:
        inbox.append([NewEvent(b"%d" % number, entity="c") for number in range(3)])
        place.start("run", str(file), "--once").finished(TIMEOUT_S)
        assert sorted(map(int, place.charged())) == [1, 2, 3]
        assert [each.reader for each in inbox.readers()] == ["charges"]
        inbox.append([NewEvent(b"later", entity="c")])
        inbox.prune(keep_s=0)
        assert inbox.read(0, 3, 4).column("value").to_pylist() == [b"later"]
        place.start("run", str(file), "--once").finished(TIMEOUT_S)
    assert sorted(map(int, place.charged())) == [1, 2, 3, 4]


SLOW = (
    TWO_SINKS.replace("[source]", "[source]\nstatic = false")
    .replace('path = "payments"', 'path = "payments", maxFilesPerTrigger = 1')
    .partition('[[sinks]]\ntype = "files"')[0]
)


def test_a_signal_ends_the_run_with_nothing_in_doubt_and_a_second_one_at_once(
    place: PipelinePlace,
) -> None:
    (place.folder / "own_sinks.py").write_text(MODULE)
    transform = SLOW.index("[transform]"), SLOW.index("[identity]")
    file = place.folder / "charges.toml"
    file.write_text(SLOW[: transform[0]] + SLOW[transform[1] :])
    expected = place.payments(6, 20)
    place.variables = {"TOKEN": SECRET, "SLOW_S": "0.1"}
    drained = place.start("run", str(file))
    wait_for(lambda: len(place.charged()) > 22, drained, TIMEOUT_S)
    drained.kill(signal.SIGINT)
    drained.finished(TIMEOUT_S)
    count = len(place.charged())
    assert count < len(expected)
    assert "charges: drained" in drained.said()
    assert place.status("charges")["charge"]["in_doubt"] == 0
    place.variables = {"TOKEN": SECRET, "SLOW_S": "0.6"}
    stopped = place.start("run", str(file))
    wait_for(lambda: len(place.charged()) > count + 1, stopped, TIMEOUT_S)
    stopped.kill(signal.SIGTERM)
    wait_for(lambda: "stopping in order" in stopped.said(), stopped, TIMEOUT_S)
    stopped.kill(signal.SIGTERM)
    assert stopped.wait(TIMEOUT_S) == 128 + signal.SIGTERM, stopped.said()
    assert len(place.charged()) < count + 20
    assert repeated(place.charged()) == []


def test_a_signal_that_spark_gets_too_is_one_sentence_that_says_whom_to_send_it(
    place: PipelinePlace,
) -> None:
    file = place.write("charges.toml", SLOW_CHARGES)
    expected = place.payments(3, 20)
    place.variables = {"SLOW_S": "0.1"}
    run = place.start("run", str(file))
    wait_for(lambda: len(place.charged()) > 5, run, TIMEOUT_S)
    os.killpg(run.pid, signal.SIGTERM)  # as systemd does
    assert run.wait(TIMEOUT_S) == 1, run.said()
    last = run.said().strip().splitlines()[-1]
    assert "Spark's JVM ended under the query" in last
    assert "KillMode=mixed" in last
    assert "Traceback" not in run.said()
    place.semel("run", "--once", str(file))
    assert repeated(place.charged()) == []
    left = place.status("charges")["charge"]
    assert len(place.charged()) + left["in_doubt"] + left["waiting"] >= len(expected)


def repeated(ids: list[int]) -> list[int]:
    return [each for each, count in Counter(ids).items() if count > 1]


SUBMITTED = """
[pipeline]
name = "large"
ledger = "sqlite:///charges.db"
checkpoint = "checkpoints/large"
[source]
format = "json"
schema = "customer string, payment_id bigint, amount bigint"
options.path = "payments"
[transform]
python = "own_sinks:large"
[identity]
entity = "customer"
event = "payment_id"
[[sinks]]
type = "files"
url = "out"
format = "json"
"""


def test_a_file_is_an_application_of_spark_submit_with_a_transformation_in_python(
    place: PipelinePlace,
) -> None:
    expected = [each for each in place.payments(2, 20) if each % 9 + 1 > 5]
    (place.folder / "own_sinks.py").write_text(MODULE)
    file = place.folder / "large.toml"
    file.write_text(SUBMITTED)
    submit = [
        *(str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"),
        *("--conf", "spark.ui.enabled=false", str(application.__file__)),
    ]
    place.variables = {"PYSPARK_PYTHON": sys.executable}
    run = place.start(str(file), "--once", command=tuple(submit))
    run.finished(TIMEOUT_S)
    assert "large: finished" in run.said()
    assert sorted(place.delivered("out", "large")) == expected


def test_what_goes_wrong_has_its_status_and_the_line_of_the_file(place: PipelinePlace) -> None:
    """A wrong statement is a mistake of the file; a query that fails is not."""
    place.payments(1, 20)
    (place.folder / "own_sinks.py").write_text(MODULE)
    file = place.folder / "large.toml"
    file.write_text(
        SUBMITTED.replace('python = "own_sinks:large"', 'sql = "select * from nowhere"')
    )
    wrong = place.start("run", str(file), "--once")
    file.with_name("failing.toml").write_text(
        SUBMITTED.replace(
            'type = "files"\nurl = "out"\nformat = "json"', 'type = "own_sinks:broken"'
        )
    )
    failing = place.start("run", str(file.with_name("failing.toml")), "--once")
    assert wrong.wait(TIMEOUT_S) == 2, wrong.said()
    [line] = [each for each in wrong.said().splitlines() if each.startswith("semel: ")]
    assert line.startswith(f"semel: {file}:11:1: AnalysisException: [TABLE_OR_VIEW_NOT_FOUND]")
    assert "Traceback" not in wrong.said()
    assert "stacktrace" not in wrong.said()  # Spark's own log of it, with every frame of the JVM
    assert failing.wait(TIMEOUT_S) == 1, failing.said()
    line = failing.said().strip().splitlines()[-1]
    assert line.startswith("semel: semel.errors.SinkBroken: pipeline 'large', sink 'broken'")


def test_the_version_of_the_application_is_that_of_the_package() -> None:
    assert Path(application.__file__).parent.parent == Path(semel.__file__).parent
