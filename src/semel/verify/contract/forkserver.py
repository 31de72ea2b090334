"""The fork server: a process that has imported everything and forks one for each attempt.

Always true:
- it has one thread and no open connections, so a forked process is as clean as a new one;
- when its parent is gone, it ends every process that it forked, and itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.delivery import only_look
from semel.errors import SemelError
from semel.sinks import Function
from semel.verify.contract.rows import Maker, payments
from semel.verify.contract.worker import Order, run
from semel.verify.process_group import Closable, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

_SRC = Path(__file__).parents[3]
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it


class ForkServerFailed(SemelError):
    """The processes of the suite cannot be started, or the sink cannot be sent to them."""


@dataclass(frozen=True)
class ProcessState:
    """The state of a process: running, stopped, or ended by itself or by a signal."""

    stopped: bool = False
    ended: bool = False
    signal: int = 0


class ForkServer(Closable):
    """Starts processes for a suite. All of them end with it, and with its parent."""

    def __init__(self) -> None:
        # Only processes are killed, not the machine: ledgers in memory are durable enough.
        self._group = ProcessGroup("contract", _MEMORY if os.access(_MEMORY, os.W_OK) else None)
        mine, other = Pipe()
        paths = [str(_SRC), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({other.fileno()})"]
        self._process = self._group.start(
            command,
            {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            self.folder / "forkserver.log",
            pass_fds=[other.fileno()],
        )
        other.close()
        self._connection = mine
        self._ask("look", str(Path.cwd()), sys.path)
        self._ask("warm_up", self.folder / "warm-up")

    @property
    def folder(self) -> Path:
        """A folder that is removed when the fork server is closed."""
        return self._group.folder

    def close(self) -> None:
        """End every process and remove the folder."""
        self._connection.close()
        self._group.close()

    def load(self, sink: bytes, modules: Mapping[str, str]) -> None:
        """Unpickle the sink there; `modules` has the files of its classes."""
        self._ask("load", sink, dict(modules))

    def fork(self, order: Order) -> int:
        """Start a process that carries out `order`; return its process id."""
        return int(self._ask("fork", order))

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process that was started here."""
        self._ask("signal", pid, number)

    def wait(self, pid: int, patience_s: float) -> ProcessState:
        """Wait until a process is stopped or has ended; neither is set after `patience_s`."""
        state: ProcessState = self._ask("wait", pid, patience_s)
        return state

    def _ask(self, word: str, *arguments: object) -> Any:
        try:
            self._connection.send((word, arguments))
            fine, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            log = (self.folder / "forkserver.log").read_text(errors="replace").strip()
            raise ForkServerFailed(
                f"the processes of the suite are gone: {log[-800:] or error}"
            ) from None
        if not fine:
            raise ForkServerFailed(str(answer))
        return answer


# -- the process itself


class _Server:
    """The requests that the fork server carries out."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sink: Any = None
        self._living: set[int] = set()

    def serve(self) -> None:
        """Answer requests until the parent closes the pipe."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                word, arguments = self._connection.recv()
                try:
                    answer = True, getattr(self, word)(*arguments)
                except Exception as error:  # noqa: BLE001 - it is the answer
                    answer = False, _describe(error)
                self._connection.send(answer)
        for pid in self._living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def look(self, folder: str, paths: list[str]) -> None:
        os.chdir(folder)
        sys.path[:] = paths

    def warm_up(self, folder: Path) -> None:
        """Deliver once to nowhere: the first delivery of a process takes long."""
        folder.mkdir()
        maker = Maker()
        batches = maker.rows(payments(["a", "b"], [1, 2])).batches
        order = Order(folder, 1, "warm-up", maker.identity, 0.0, 1.0, batches=batches)
        run(order, Function(name="nowhere", function=str))

    def load(self, sink: bytes, modules: dict[str, str]) -> None:
        for name, path in modules.items():
            _import(name, path)
        self._sink = pickle.loads(sink)  # noqa: S301 - what the suite pickled

    def fork(self, order: Order) -> int:
        pid = os.fork()
        if pid:
            self._living.add(pid)
            return pid
        try:
            self._connection.close()
            run(order, self._sink)
        except BaseException:  # noqa: BLE001 - it is printed, and the process ends here
            traceback.print_exc()
        finally:
            os._exit(0)

    def signal(self, pid: int, number: int) -> None:
        if pid in self._living:
            os.kill(pid, number)

    def wait(self, pid: int, patience_s: float) -> ProcessState:
        if pid not in self._living:
            return ProcessState(ended=True)
        signal.setitimer(signal.ITIMER_REAL, patience_s)
        try:
            _, status = os.waitpid(pid, os.WUNTRACED)
        except _Overdue:
            return ProcessState()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if os.WIFSTOPPED(status):
            return ProcessState(stopped=True)
        self._living.discard(pid)
        return ProcessState(ended=True, signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


class _Overdue(Exception):
    """The wait took too long."""


def _be_overdue(*_: object) -> None:
    raise _Overdue


def _import(name: str, path: str) -> None:
    """Import a module by its name, or from its file if it is not found by name."""
    if name in sys.modules:
        return
    only_look(f"`semel` imports {name!r}")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def serve(number: int) -> None:
    """Run the fork server for the process at the other end of a pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _be_overdue)
    _Server(Connection(number)).serve()
    os._exit(0)
