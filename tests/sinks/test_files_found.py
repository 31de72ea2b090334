"""A place that a replaced attempt empties, where a rename replaces nothing, as on HDFS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from semel.sinks.files.folders import Folder


class AsHdfs:
    """A local disk that says it is HDFS, and like it renames nothing over what is there."""

    type_name = "hdfs"

    def __init__(self) -> None:
        self._disk = fs.LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def move(self, source: str, target: str) -> None:
        assert not Path(target).exists()
        self._disk.move(source, target)


def test_an_attempt_with_nothing_left_to_move_does_not_empty_the_place(tmp_path: Path) -> None:
    folder = Folder(AsHdfs(), str(tmp_path), "hdfs://here")
    (tmp_path / "part-0").write_bytes(b"what a manifest names")
    # It had looked before the later attempt claimed the place and removed what it held aside.
    with pytest.raises(OSError, match="_aside"):
        folder.move("_aside/1.1.part", "part-0")
    assert folder.read("part-0") == b"what a manifest names"
