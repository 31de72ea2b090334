"""Files earn REPEATABLE: whoever reads by manifests reads every event once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.sinks import Sink
from semel.sinks.files import Files, read
from semel.verify.plugin import SinkContract

pytestmark = pytest.mark.rows("N10")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


class TestFiles(SinkContract):
    @pytest.fixture
    def sink(self, folder: Path) -> Sink:
        self.folder = folder
        return Files(name="files", url=str(folder))

    def arrived(self) -> Iterator[tuple[str, int]]:
        for pipeline in self.folder.iterdir():
            for table in read(str(pipeline / "files")):
                yield from zip(
                    table["customer"].to_pylist(), table["payment_id"].to_pylist(), strict=True
                )
