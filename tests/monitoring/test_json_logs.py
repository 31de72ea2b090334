"""Log lines as JSON: one object for each line, whatever a message holds."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import semel
from semel.delivery import LogObserver
from support.destinations import Post, lost
from support.docs_blocks import blocks
from support.pipeline import World


class Lines(logging.Handler):
    """Keeps what a formatter makes."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(semel.JsonLogs())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Any:
    handler, logger = Lines(), logging.getLogger("semel")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.setLevel(before)
    logger.removeHandler(handler)


def test_a_minibatch_is_one_line_with_its_figures_by_name(lines: list[str]) -> None:
    world = World(observer=LogObserver())
    world.add(Post(), window=1)
    world.start()
    world.out.plan(lost)
    opening = world.open(0)
    reports = world.task(opening, "a1 b2 c3")
    world.clock.move(2)
    world.driver.end(opening, reports)
    [info] = [json.loads(each) for each in lines if '"level":"INFO"' in each]
    assert info.pop("time").endswith("Z")
    assert info == {
        "level": "INFO",
        "logger": "semel",
        "message": "pipeline 'pay', minibatch 1.0: 2 delivered (2 to 'out'), 0 skipped, "
        "0 suppressed, 1 parked, 2.000 s, 1/s",
        "pipeline": "pay",
        "run": 1,
        "minibatch": "1.0",
        "delivered": 2,
        "delivered_by_sink": {"out": 2},
        "skipped": 0,
        "suppressed": 0,
        "parked": 1,
        "in_doubt": 1,
        "dropped": 0,
        "counted_only": False,
        "seconds": 2.0,
        "per_s": 1.0,
    }


@pytest.mark.parametrize(
    "text", ['a "quoted" word', "two\nlines", "\x00\x1b[31m", "ä €  ", "\ud800", "{}%s"]
)
def test_a_line_is_one_line_of_json_whatever_it_says(text: str) -> None:
    handler = Lines()  # not through a logger: pytest cannot report what it captures there
    handler.handle(logging.LogRecord("semel", logging.WARNING, "job.py", 1, "%s", (text,), None))
    [line] = handler.lines
    assert "\n" not in line
    assert json.loads(line)["message"] == text


def test_an_error_comes_with_its_traceback(lines: list[str]) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("semel").exception("it failed")
    found = json.loads(lines[0])
    assert found["message"] == "it failed"
    assert found["error"].endswith("ValueError: no")


def test_without_the_level_info_no_line_is_made(caplog: pytest.LogCaptureFixture) -> None:
    world = World(observer=LogObserver())
    world.add(Post())
    with caplog.at_level(logging.WARNING, logger="semel"):
        world.start()
        world.minibatch(0, "a1")
    assert caplog.messages == []


def test_the_page_on_operating_sets_it_up_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("semel")
    before, level = list(logger.handlers), logger.level
    block = blocks("docs/operating.md", "python")[2]
    try:
        exec(compile(block.text, str(block), "exec"), {})
        logger.info("it works")
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)
    assert json.loads(capsys.readouterr().err)["message"] == "it works"
