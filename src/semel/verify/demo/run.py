"""The steps of `semel demo`: payments, a charge server, a driver that is killed, and the counts.

Always true:
- the charge server is a separate process, so killing Spark cannot change what it has counted;
- the payments come file by file, so that both deliveries are at the same file when they are killed;
- nothing is left behind, however it ends (see `process_group`): no process, and no folder unless
  it is to be kept.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, SemelError
from semel.events.encoding import ascii_json
from semel.ledger import Ledger
from semel.runtime import SystemClock
from semel.verify.demo.charge_server import ChargeServer
from semel.verify.demo.job import NAME, PLAIN, SEMEL
from semel.verify.demo.standalone import python_workers, spark_environment
from semel.verify.process_group import Closable, ProcessGroup

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

FILES = 5
WORKERS_DIE_IN, DRIVER_DIES_IN = 1, 2
"""The files in whose middle processes are killed: after about a quarter, and half-way."""

PATIENCE_S = 600.0
"""An idle machine needs a tenth of it, a busy one may need half."""

STOP_WITHIN_S = 15.0

_LOOK_S = 0.05
_FILE_S = 1.5
_SERVICE_S_LEAST = 0.005
_TAIL_LINES = 25


class Unfinished(SemelError):
    """The demo did not finish, so it shows nothing."""


@dataclass(frozen=True, slots=True)
class ChargeCounts:
    """How many payments were charged once, more than once, and never."""

    once: int
    twice: int
    never: int

    @property
    def charged(self) -> int:
        """How many were charged at all."""
        return self.once + self.twice


class Demo(Closable):
    """One demo; `report` is called with each step, `show` with the counts of plain and semel."""

    def __init__(
        self,
        payments: int,
        report: Callable[[str], None],
        show: Callable[[ChargeCounts, ChargeCounts], None],
        *,
        keep: bool = False,
    ) -> None:
        self._report, self._show = report, show
        self._clock = SystemClock()
        self._deadline = self._clock.monotonic() + PATIENCE_S
        self._files = [
            range(payments * file // FILES, payments * (file + 1) // FILES) for file in range(FILES)
        ]
        self._customers = payments // 2
        self._payments = payments
        self._charged: dict[str, Counter[int]] = {PLAIN: Counter(), SEMEL: Counter()}
        self._driver: subprocess.Popen[bytes] | None = None
        self._ledger: Ledger | None = None
        self._group = ProcessGroup("demo")
        try:
            root = Path(tempfile.mkdtemp(prefix="semel-demo-")) if keep else self._group.folder
            self.folder = root
            for name in ("payments", "checkpoints", "local"):
                (root / name).mkdir(exist_ok=True)
            self._log = root / "spark.log"
            self._server = ChargeServer()
        except BaseException:
            self._group.close()
            raise

    def close(self) -> None:
        """End everything that was started."""
        try:
            if self._ledger is not None:
                self._ledger.close()
            self._server.close()
        finally:
            self._group.close()

    @property
    def ledger(self) -> str:
        """The URL of the ledger: the default, a file beside the checkpoint."""
        return f"sqlite:///{self.folder / 'checkpoints' / NAME}.semel.db"

    # -- steps

    def deliver(self) -> None:
        """Deliver everything in both ways, except what semel holds; kill workers, then the driver.

        Raises `Unfinished`.
        """
        self._report(
            f"{self._payments} payments, in {FILES} files; plain foreachBatch and semel charge the "
            "same, side by side"
        )
        self._start()
        faults = [(WORKERS_DIE_IN, self._kill_workers), (DRIVER_DIES_IN, self._kill_driver)]
        for number in range(FILES):
            self._write(number)
            if faults and number >= faults[0][0] and self._await_middle(number):
                faults.pop(0)[1]()
            self._await(lambda number=number: self._is_through(number))  # type: ignore[misc]
        if faults:
            raise Unfinished("both were never seen at work at the same time, so nothing was killed")

    def was_charged(self, payment: int) -> bool:
        """Whether the destination has a payment of semel, as a person would look it up."""
        self._look()
        return self._charged[SEMEL][payment] > 0

    def finish(self) -> tuple[ChargeCounts, ChargeCounts]:
        """Wait until every payment is charged, stop the driver, and return the counts.

        Raises `Unfinished`.
        """
        self._await(lambda: self._is_charged() and self._is_settled())
        self._stop()
        self._look()
        return self._tally(PLAIN), self._tally(SEMEL)

    # -- the payments

    def _write(self, number: int) -> None:
        """Write one more file of payments: one micro-batch."""
        rows = [
            {"customer": f"c{id_ % self._customers}", "payment_id": id_, "amount": 1 + id_ % 90}
            for id_ in self._files[number]
        ]
        aside = self.folder / "arriving.json"
        aside.write_text("".join(ascii_json(row) + "\n" for row in rows))
        aside.rename(self.folder / "payments" / f"{number}.json")

    # -- the driver

    def _start(self) -> None:
        """Start the driver's process, with a log file."""
        service_s = max(_SERVICE_S_LEAST, _FILE_S / len(self._files[0]))
        command = [
            *(sys.executable, "-m", "semel.verify.demo.job"),
            *(self._server.url, str(self.folder), f"{service_s:.4f}"),
        ]
        environment = {
            **spark_environment(self.folder),
            "TMPDIR": str(self.folder / "local"),
            "SEMEL_LEDGER": "",  # the default is what is shown
        }
        self._driver = self._group.start(command, environment, self._log)
        self._report(f"started Spark: driver {self._driver.pid}")

    def _kill_workers(self) -> None:
        assert self._driver is not None
        found = python_workers(self._driver.pid)
        if not found:
            raise Unfinished("Spark's Python workers were not found, so they could not be killed")
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        these = f"worker{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"
        self._report(f"killed Spark's Python {these} with SIGKILL, {self._share()} of the way")

    def _kill_driver(self) -> None:
        assert self._driver is not None
        pid, self._driver = self._driver.pid, None
        self._group.end()
        self._report(
            f"killed the driver {pid} and its JVM with SIGKILL, {self._share()} of the way"
        )
        self._start()

    def _stop(self) -> None:
        assert self._driver is not None
        self._driver.terminate()
        until = self._clock.monotonic() + STOP_WITHIN_S
        while self._driver.poll() is None and self._clock.monotonic() < until:
            self._clock.sleep(_LOOK_S)
        self._group.end()

    def _share(self) -> str:
        return f"{100 * self._tally(SEMEL).charged // self._payments} %"

    # -- counts

    def _look(self) -> None:
        """Ask the charge server for the charges so far, and show the counts."""
        charged: dict[str, Counter[int]] = {PLAIN: Counter(), SEMEL: Counter()}
        for charge in self._server.charges():
            assert charge.pipeline is not None
            assert isinstance(charge.event, int)
            charged[charge.pipeline][charge.event] += 1
        self._charged = charged
        self._show(self._tally(PLAIN), self._tally(SEMEL))

    def _tally(self, how: str) -> ChargeCounts:
        counts = [self._charged[how][payment] for payment in range(self._payments)]
        once = counts.count(1)
        never = counts.count(0)
        return ChargeCounts(once, len(counts) - once - never, never)

    def _done(self, how: str, number: int) -> int:
        """Return how many payments of a file were charged."""
        return sum(self._charged[how][payment] > 0 for payment in self._files[number])

    def _await_middle(self, number: int) -> bool:
        """Wait until both are in the middle of a file; False if one reached its end before."""
        size = len(self._files[number])
        first, last = size // 4, size - size // 8

        def is_decided() -> bool:
            done = [self._done(how, number) for how in (PLAIN, SEMEL)]
            return min(done) >= first or max(done) >= last

        self._await(is_decided)
        return max(self._done(how, number) for how in (PLAIN, SEMEL)) < last

    def _is_through(self, number: int) -> bool:
        """Whether both have finished a file, except for what semel holds."""
        if self._done(PLAIN, number) < len(self._files[number]):
            return False
        try:
            stands = self._opened().summary(NAME)
        except ConfigurationError:  # its first minibatch has not begun
            return False
        opened = stands.minibatch
        return stands.complete is True and opened is not None and opened.batch >= number

    def _is_charged(self) -> bool:
        return all(not self._tally(how).never for how in (PLAIN, SEMEL))

    def _is_settled(self) -> bool:
        """Whether no parked event of semel is waiting."""
        return all(row.state.final for _, row in self._opened().parked(NAME))

    def _opened(self) -> Ledger:
        """Return the ledger. Raises `ConfigurationError` while there is none."""
        if self._ledger is None:
            self._ledger = Ledger(self.ledger)
        return self._ledger

    def _await(self, what: Callable[[], bool]) -> None:
        """Poll until `what` holds. Raises `Unfinished` with the end of the log."""
        while True:
            self._look()
            if what():
                return
            if self._driver is None or self._driver.poll() is not None:
                raise Unfinished(f"the driver ended by itself; the end of its log:\n{self._tail()}")
            if self._clock.monotonic() > self._deadline:
                raise Unfinished(
                    f"the demo did not finish within {PATIENCE_S:.0f} s; the end of "
                    f"Spark's log:\n{self._tail()}"
                )
            self._clock.sleep(_LOOK_S)

    def _tail(self) -> str:
        """Return the end of the driver's log, without Java stack frames."""
        lines = self._log.read_text(errors="replace").splitlines()
        shown = [line for line in lines if not line.lstrip().startswith("at ")]
        return "\n".join(shown[-_TAIL_LINES:])
