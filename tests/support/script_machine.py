"""A machine for the scripts that install what is missing; its programs only tell that they were
called.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

OURS = ("sh", "sed", "head", "cat", "chmod")


class ScriptMachine:
    """A PATH with nothing on it but a few plain tools and what the test puts there."""

    def __init__(self, folder: Path, script: str) -> None:
        self.script = Path(__file__).parents[2] / ".ci" / script
        self.path = folder / "bin"
        self.path.mkdir()
        self.record = folder / "calls"
        for name in OURS:
            places = (Path("/bin") / name, Path("/usr/bin") / name)
            (self.path / name).symlink_to(next(place for place in places if place.exists()))

    def put(self, name: str, *lines: str) -> None:
        program = self.path / name
        program.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        program.chmod(0o755)

    def put_manager(self, name: str, installs: str, *lines: str) -> None:
        """A package manager that records its call, and installs a program of these lines."""
        program = self.path / installs
        self.put(
            name,
            f'echo "{name} $*" >> {self.record}',
            f"cat > {program} <<'END'",
            "#!/bin/sh",
            *lines,
            "END",
            f"chmod +x {program}",
        )

    def be(self, user: int, *, sudo: bool = False) -> None:
        self.put("id", f"echo {user}")
        if sudo:
            self.put("sudo", '[ "$1" != -n ] || shift', 'exec "$@"')
            self.put("true", "exit 0")

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.script],
            env={"PATH": str(self.path), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def assert_installs(self, call: str) -> None:
        """It does what it says, and says what it does."""
        done = self.run()
        assert done.returncode == 0, done.stderr
        assert self.calls[-1] == call
        assert call in done.stderr

    def refusal(self, **environment: str) -> str:
        """Give the one line with which it gives up; nothing was installed."""
        done = self.run(**environment)
        assert done.returncode == 1
        assert self.calls == []
        [line] = done.stderr.splitlines()
        return line

    @property
    def calls(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []
