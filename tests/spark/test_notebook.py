"""A real notebook (nbclient, ipykernel): functions of a cell are sinks, and objects are tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from support.spark.driver_scripts import TESTS
from support.spark.version_needs import has, reason

CELLS = (
    """
from pathlib import Path
import semel
from semel.spark import make_session

folder = Path(FOLDER)
(folder / "input").mkdir()
(folder / "input" / "a.json").write_text(
    "\\n".join('{"customer": "c%d", "payment_id": %d}' % (i % 3, i) for i in range(9))
)
spark = make_session("notebook", master="local[2]")
""",
    """
charged = folder / "charged"

def name_of(event):
    return f"{event.entity}/{event.id}"

@semel.sink(window=1, on_doubt="hold")
def charge(event: semel.Event) -> None:
    if event.id == 4:
        raise semel.Rejected("not this one")
    with charged.open("a") as out:  # a name of the notebook, in a worker
        out.write(name_of(event) + "\\n")
""",
    "semel.explain(charge)",
    """
payments = spark.readStream.schema("customer string, payment_id bigint").json(str(folder / "input"))
query = (
    semel.deliver(
        payments, to=charge, name="pay", entity="customer", event="payment_id",
        ledger=f"sqlite:///{folder}/ledger.db",
    )
    .option("checkpointLocation", str(folder / "checkpoint"))
    .start()
)
query
""",
    "query.processAllAvailable(); query",
    """
query.stop()
semel.Ledger(f"sqlite:///{folder}/ledger.db")
""",
    "spark.stop()",
)


@pytest.mark.skipif(not has("quiet"), reason=reason("quiet"))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_of_a_cell_is_a_sink_and_what_runs_is_shown_as_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    cells = [nbformat.v4.new_code_cell(each) for each in CELLS]  # type: ignore[no-untyped-call]
    cells[0].source = cells[0].source.replace("FOLDER", repr(str(tmp_path)))
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    explained, begun, ran, ledger = (tables(notebook, at) for at in (2, 3, 4, 5))
    assert "OPAQUE" in explained
    assert "Query" in begun
    assert "running" in begun
    assert "Query pay: running" in ran
    assert "charge: 8" in ran
    assert ">1.0</td>" in ran
    assert "charge</td>" in ledger
    assert "opaque</td>" in ledger
    wanted = {f"c{each % 3}/{each}" for each in range(9) if each != 4}
    assert sorted((tmp_path / "charged").read_text().split()) == sorted(wanted)


def tables(notebook: Any, at: int) -> str:
    """The HTML that a cell displays."""
    found = [
        each.data["text/html"]
        for each in notebook.cells[at].outputs
        if each.output_type == "execute_result" and "text/html" in each.data
    ]
    assert len(found) == 1, notebook.cells[at].outputs
    return str(found[0])
