"""The keys `metrics`, `otel`, `alert` and `audit` of a pipeline file, and log lines as JSON."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from semel.pipeline.running import _concealing
from support.pipeline_files import Build, Wrong

SMALL = """\
[pipeline]
name = "p"
checkpoint = "c"
KEYS
[source]
format = "json"
[identity]
entity = "customer"
event = "payment_id"
[[sinks]]
type = "http"
url = "https://service.example/"
"""


def test_they_become_the_arguments_of_deliver(built: Build, folder: Path) -> None:
    (folder / "tells.py").write_text("def tell(alert): return 'told'\n")
    keys = 'metrics = 9108\notel = true\nalert = "tells:tell"'
    words = built(SMALL.replace("KEYS", keys)).words()
    assert (words["metrics"], words["otel"]) == (9108, True)
    assert words["alert"](None) == "told"
    keys = 'metrics = "0.0.0.0:9108"\nalert = "https://alerts.example/x?token=${TOKEN}"'
    words = built(SMALL.replace("KEYS", keys), TOKEN="s3cret").words()
    assert words["metrics"] == "0.0.0.0:9108"
    assert words["alert"] == "https://alerts.example/x?token=s3cret"
    assert "otel" not in words


def test_the_audit_log_is_below_the_folder_of_the_file_or_a_url(built: Build, folder: Path) -> None:
    words = built(SMALL.replace("KEYS", 'audit = "audit"')).words()
    assert words["audit"] == str(folder / "audit")
    url = "s3://k:${TOKEN}@bucket/audit"
    words = built(SMALL.replace("KEYS", f'audit = "{url}"'), TOKEN="s3cret").words()
    assert words["audit"] == "s3://k:s3cret@bucket/audit"
    assert "audit" not in built(SMALL.replace("KEYS", "")).words()


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("metrics = 0", "p.toml:4:1: metrics must be a port such as 9108"),
        ('metrics = "here"', "p.toml:4:1: metrics must be a port such as 9108"),
        ("metrics = true", "p.toml:4:11: metrics: expected a port, or an address such as"),
        ('alert = "alerts.example"', "p.toml:4:1: pipeline 'p': alert must be a URL such as"),
        ('alert = "no_module:tell"', "p.toml:4:9: cannot import 'no_module'"),
        ('alert = "json:__name__"', "p.toml:4:9: json:__name__ is a str, and not a function"),
        ('audit = "ftp://x"', "p.toml:4:1: audit: ftp://... is not a supported place for files"),
        ("audit = 7", "p.toml:4:9: audit: expected a non-empty text, found the number 7"),
        ('otel = "yes"', "p.toml:4:8: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(key: str, found: str, wrong: Wrong) -> None:
    [line] = wrong(SMALL.replace("KEYS", key))
    assert line.startswith(found), line


def test_lines_as_json_hold_no_secret_and_the_logger_is_left_as_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("semel")
    before = (logger.level, list(logger.handlers), logger.propagate)
    secret = 'pa"ss\\word'
    with _concealing({secret}, json_logs=True):
        logger.info("connected with %s", secret)
        try:
            raise ValueError(secret)
        except ValueError:
            logger.exception("failed")
    assert (logger.level, list(logger.handlers), logger.propagate) == before
    lines = [json.loads(each) for each in capsys.readouterr().err.splitlines()]
    assert [each["message"] for each in lines] == ["connected with ***", "failed"]
    assert lines[1]["error"].endswith("ValueError: ***")
