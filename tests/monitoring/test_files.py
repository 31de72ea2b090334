"""The alert rules and the dashboard: with the real promtool, and against the metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from semel.errors import ConfigurationError
from semel.monitoring import (
    FILES,
    METRICS,
    Distribution,
    MetricKind,
    Sample,
    text_of,
    write_files,
)
from semel.monitoring.catalogue import sample_names

ROOT = Path(__file__).parents[2]
RULES = FILES / "semel-rules.yml"
DASHBOARD = FILES / "semel-dashboard.json"
CASES = Path(__file__).with_name("semel-rules.test.yml")

_NAME = re.compile(r"\bsemel_\w+")


@pytest.fixture(scope="module")
def promtool() -> str:
    """The real tool, which `make promtool` fetches."""
    beside = Path(sys.executable).parent / "promtool"
    found = str(beside) if beside.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool; `make promtool` says why")
    return found


def run(promtool: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *words], capture_output=True, text=True, check=False)


def case_run(promtool: str, rules: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the cases of the rules with these rules."""
    (folder / "rules.yml").write_text(rules)
    cases = CASES.read_text().replace("RULES", str(folder / "rules.yml"))
    (folder / "cases.yml").write_text(cases)
    return run(promtool, "test", "rules", str(folder / "cases.yml"))


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def queries() -> Iterator[str]:
    """The queries of the dashboard, as Prometheus gets them."""
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m").replace("$pipeline", ".*")


def unknown_names(text: str) -> set[str]:
    """The metrics that a text names, and that no endpoint has."""
    known = {each for metric in METRICS.values() for each in sample_names(metric)}
    return set(_NAME.findall(text)) - known


def test_the_rules_are_rules(promtool: str) -> None:
    done = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_each_alert_fires_for_what_it_is_about_and_not_before(
    promtool: str, tmp_path: Path
) -> None:
    done = case_run(promtool, RULES.read_text(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = yaml.safe_load(CASES.read_text())["tests"]
    fired: dict[str, set[bool]] = {}
    for case in cases:
        for each in case["alert_rule_test"]:
            fired.setdefault(each["alertname"], set()).add(bool(each["exp_alerts"]))
    assert fired == {each["alert"]: {True, False} for each in rules()}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('state="held"', 'state="waiting"'),
        ("> 900", "> 90"),
        ("and semel_run_number > 0", ""),
        ("offset 15m", "offset 45m"),
        ('share="0.99"', 'share="0.5"'),
        ("increase(semel_ledger_errors_total", "(semel_ledger_errors_total"),
    ],
)
def test_a_rule_that_is_wrong_is_found(
    right: str, wrong: str, promtool: str, tmp_path: Path
) -> None:
    planted = RULES.read_text().replace(right, wrong)
    assert planted != RULES.read_text()
    assert case_run(promtool, planted, tmp_path).returncode != 0


def test_the_text_of_the_endpoint_has_nothing_that_promtool_finds_fault_with(promtool: str) -> None:
    samples = []
    for metric in METRICS.values():
        value: float | Distribution = 1.0
        if metric.kind is MetricKind.HISTOGRAM:
            value = Distribution(2, 3.0, (("1.0", 1), ("+Inf", 2)))
        elif metric.kind is MetricKind.SUMMARY:
            value = Distribution(2, 3.0)
        samples.append(Sample(metric, tuple(f"a {each}" for each in metric.labels), value))
    text, _ = text_of(samples)
    command = [promtool, "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    wrong = text.replace(b"semel_events_parked_total", b"semel_eventsParked")
    assert subprocess.run(command, input=wrong, capture_output=True, check=False).returncode != 0


def test_the_queries_of_the_dashboard_are_queries(promtool: str, tmp_path: Path) -> None:
    found = list(queries())
    assert len(found) > 20
    made = [{"record": f"semel:{at}", "expr": each} for at, each in enumerate(found)]
    text = yaml.safe_dump({"groups": [{"name": "dashboard", "rules": made}]})
    (tmp_path / "queries.yml").write_text(text)
    done = run(promtool, "check", "rules", str(tmp_path / "queries.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "queries.yml").write_text(text.replace("rate(", "rat(", 1))
    assert run(promtool, "check", "rules", str(tmp_path / "queries.yml")).returncode != 0


def test_every_metric_that_they_name_exists() -> None:
    texts = [each["expr"] for each in rules()] + list(queries())
    texts.append(json.dumps(dashboard()["templating"]))
    assert unknown_names("\n".join(texts)) == set()
    assert unknown_names("rate(semel_events_deliverd_total[5m])") == {"semel_events_deliverd_total"}
    assert unknown_names("semel_minibatch_seconds") == {"semel_minibatch_seconds"}


def test_the_page_on_operating_has_every_metric_and_every_alert() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    named = set(_NAME.findall(page))
    assert named >= METRICS.keys()
    assert unknown_names(" ".join(named - METRICS.keys())) == set()
    headings = set(re.findall(r"^#+ (\w+)$", page, re.MULTILINE))
    assert headings >= {each["alert"] for each in rules()}
    for each in rules():
        anchor = each["annotations"]["runbook"].removeprefix("docs/operating.md#")
        assert anchor == each["alert"].lower()


def test_panels_have_a_place_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])


def test_they_are_written_beside_a_pipeline_file_and_overwrite_nothing(tmp_path: Path) -> None:
    written = write_files(tmp_path / "monitoring")
    assert [each.name for each in written] == ["semel-dashboard.json", "semel-rules.yml"]
    assert written[1].read_bytes() == RULES.read_bytes()
    written[0].unlink()
    with pytest.raises(ConfigurationError, match=r"semel-rules\.yml exists"):
        write_files(tmp_path / "monitoring")
    assert not written[0].exists()
