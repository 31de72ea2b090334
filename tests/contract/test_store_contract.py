"""The contract of stores finds planted violations, and a URL finds a store of another package."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from contract import memory_store
from contract.memory_store import SharedMemoryStore, SharedRows
from contract.worse_stores import FOUND_BY
from semel.errors import ConfigurationError
from semel.ledger import Ledger
from semel.ledger.store import open_store
from semel.ledger.store.opening import BUILT_IN, GROUP
from semel.verify.store_contract import CASES, StoreContract, area, run_case
from support.command_line import refused, semel
from support.docs_blocks import blocks

Out = pytest.CaptureFixture[str]

ROOT = Path(__file__).parents[2]
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a store, installed as pip would: a module and its metadata on the path."""
    site = tmp_path / "site"
    metadata = site / "acme_store-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "acme_store.py").write_text(Path(memory_store.__file__).read_text())
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-store\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{GROUP}]\nmemory = acme_store:open_memory\nbroken = acme_store:nothing\n"
        "sqlite = acme_store:open_memory\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "acme_store", raising=False)
    return site


# --- a store of another package -------------------------------------------------------------------


@pytest.mark.rows("S12")
class TestAStoreOfAnotherPackage(StoreContract):
    @pytest.fixture
    def url(self, installed: Path) -> str:
        return f"memory://{installed}"


@pytest.mark.rows("S12")
def test_a_registered_store_is_a_ledger(installed: Path) -> None:
    with Ledger("memory://ledger") as ledger:
        assert ledger.pipelines() == []
    assert type(open_store("memory://ledger")).__module__ == "acme_store"


def test_a_package_cannot_replace_a_built_in_store(installed: Path, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/ledger.db")
    assert type(store).__name__ == "SqliteStore"


def test_an_unknown_scheme_is_refused_with_the_known_ones(installed: Path) -> None:
    known = r"known: broken, memory, postgresql, sqlite\..*'semel.stores' \(docs/own-store.md\)"
    with pytest.raises(ConfigurationError, match=f"scheme 'mysql' is unknown, {known}") as error:
        open_store("mysql://u:secret@h/d")
    assert "secret" not in str(error.value)
    common, rare = str(error.value).index("use sqlite:///"), str(error.value).index("package")
    assert common < rare


def test_an_entry_point_that_cannot_be_loaded_is_named(installed: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"broken://.*'acme_store:nothing'.*reinstall"):
        open_store("broken://x")


def test_the_built_in_stores_are_registered_as_others_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == BUILT_IN
    for module in (each.value for each in entry_points(group=GROUP)):
        assert module in {*BUILT_IN.values(), "acme_store:open_memory", "acme_store:nothing"}


def test_the_class_of_the_documentation_runs_under_pytest(tmp_path: Path) -> None:
    [block] = blocks("docs/own-store.md", "python")
    (tmp_path / "test_scratch.py").write_text(block.text)
    chosen = ["-p", "no:cacheprovider", "-q", "-k", "tables-are-separate or scans-by-page"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *chosen, "test_scratch.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        check=False,
    )
    assert b"2 passed" in done.stdout, done.stdout


# --- a store made worse on purpose ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("worse", "name"),
    [(worse, name) for worse, names in FOUND_BY.items() for name in names],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_a_planted_violation_is_found(
    worse: type[SharedMemoryStore], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(area, "PATIENCE_S", 3.0)
    memory = SharedRows()
    result = run_case(BY_NAME[name], lambda: worse(memory))
    assert result.finding
    assert result.verdict == "failed"


def test_every_case_has_a_planted_violation() -> None:
    assert {name for names in FOUND_BY.values() for name in names} == BY_NAME.keys()


def test_a_case_leaves_no_rows() -> None:
    memory = SharedRows()
    for case in CASES:
        assert run_case(case, lambda: SharedMemoryStore(memory)).ok
    assert memory.rows == {}


# --- the command ----------------------------------------------------------------------------------


def test_the_command_says_that_a_store_is_right(tmp_path: Path, capsys: Out) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    status, out, _ = semel(capsys, "verify-store", url, "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["store"], found["ok"], found["complete"]) == (url, True, True)
    assert [each["case"] for each in found["cases"]] == list(BY_NAME)
    assert {each["verdict"] for each in found["cases"]} == {"ok"}
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        assert connection.execute("select tbl from semel").fetchall() == [("semel",)]


def test_the_command_runs_the_cases_that_are_named(tmp_path: Path, capsys: Out) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    status, out, _ = semel(capsys, "verify-store", url, "--case", "tables-are-separate")
    assert status == 0
    assert "tables-are-separate  tables do not share rows  ok" in out
    assert "passed 1 cases" in out
    told = refused(capsys, "verify-store", url, "--case", "nothing")
    assert "unknown case 'nothing'; use one of openings-share-rows" in told


def test_the_command_finds_a_store_of_another_package_and_what_is_wrong_with_it(
    installed: Path, tmp_path: Path
) -> None:
    module = installed / "acme_store.py"
    text = module.read_text()
    assert "each.key.encode()" in text
    module.write_text(text.replace("each.key.encode()", "each.key.casefold()"))
    python = os.pathsep.join([str(installed), str(ROOT / "src")])
    command = [sys.executable, "-c", "from semel.cli.main import main; main()", "verify-store"]
    done = subprocess.run(
        [*command, "memory://x", "--json", "--case", "rows-come-in-byte-order",
         "--case", "tables-are-separate"],
        env=os.environ | {"PYTHONPATH": python},
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = {each["case"]: each for each in json.loads(done.stdout)["cases"]}
    assert found["tables-are-separate"]["verdict"] == "ok"
    assert found["rows-come-in-byte-order"]["verdict"] == "failed"
    assert found["rows-come-in-byte-order"]["finding"].startswith("keys in scan order: found ['")


def test_a_wrong_url_is_the_mistake_of_the_caller(tmp_path: Path, capsys: Out) -> None:
    assert "scheme 'mysql' is unknown" in refused(capsys, "verify-store", "mysql://h/d")
    missing = f"sqlite:///{tmp_path}/no/ledger.db"
    assert "does not exist" in refused(capsys, "verify-store", missing)
    status, _, err = semel(capsys, "verify-store", "postgresql://127.0.0.1:1/x")
    assert status == 3
    assert "cannot be reached" in err
