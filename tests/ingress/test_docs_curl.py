"""The curl lines of docs/streams.md answer as printed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

from support.docs_blocks import blocks
from support.ingress import Ingress

_ANSWER = re.compile(r"^# (.*)$")


def test_the_curl_lines_of_the_page_answer_as_printed(start: Callable[..., Ingress]) -> None:
    ingress = start()
    here = f"http://127.0.0.1:{ingress.port}/"
    found = blocks("docs/streams.md", "shell")
    assert len(found) == 4
    for block in found:
        command = ""
        for line in block.text.splitlines():
            answer = _ANSWER.match(line)
            if answer is None:
                command += line + "\n"
                continue
            text = command.replace("curl http://127.0.0.1:8099/", f"curl -s {here}")
            assert here in text
            done = subprocess.run(
                ["sh", "-c", text], capture_output=True, text=True, check=False, timeout=30
            )
            assert (done.returncode, done.stdout) == (0, answer[1]), command
            command = ""
        assert not command.strip()
