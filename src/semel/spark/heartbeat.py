"""The heartbeat of a run: it records that the run is alive, and sends resolved parked events.

It also writes the figures of the run.

Always true: it ends with the query, so that the next start need not wait for it; and while the
query runs, no other start in this process takes its name.
"""

from __future__ import annotations

import atexit
import logging
import threading
from typing import TYPE_CHECKING

from semel.errors import Fenced, SemelError
from semel.ledger import forget_start, register_start

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.delivery import Driver
    from semel.spark.progress import ProgressReader

BEAT_S = 3.0
LOOK_S = 0.25
LEAVE_S = 2.0

log = logging.getLogger("semel")


class Heartbeat(threading.Thread):
    """Beats every few seconds while `active()`, then records that the run has ended.

    It sends parked events only if `between` is given and free: a minibatch that begins holds it.
    What `progress` reads of Spark's query goes to the driver's observer before each beat. If the
    run is asked to stop, or was replaced, `stop` is called, once: a query without input would not
    notice. `fenced` is the error of a run that was replaced.
    """

    def __init__(
        self,
        driver: Driver,
        active: Callable[[], bool] = lambda: True,
        between: threading.Lock | None = None,
        progress: ProgressReader | None = None,
        stop: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(name=f"semel-{driver.client.pipeline}", daemon=True)
        self._driver = driver
        self._active = active
        self._between = between
        self._progress = progress
        self._ask_query = stop
        self.fenced: Fenced | None = None
        self._stopped = threading.Event()
        self._draining: threading.Thread | None = None

    def start(self) -> None:
        """Start; at the end of the process the end of the run is recorded too, if there is time."""
        register_start(self._driver.nonce, self._lives)
        super().start()
        atexit.register(self.end)

    def stop(self) -> None:
        """End the heartbeat, even if the query still runs."""
        self._stopped.set()

    def end(self, wait_s: float | None = LEAVE_S) -> None:
        """End the heartbeat, and wait until the end of the run is recorded; None for any time."""
        self.stop()
        self.join(wait_s)

    def _lives(self) -> bool:
        return not self._stopped.is_set() and self._active()

    def run(self) -> None:
        """Beat until the query ends or a later run takes the name."""
        try:
            self._beat()
        finally:
            forget_start(self._driver.nonce)

    def _beat(self) -> None:
        waited = 0.0
        while not self._stopped.wait(LOOK_S) and self._active():
            waited += LOOK_S
            if waited < BEAT_S:
                continue
            waited = 0.0
            try:
                self._observe()
                if not self._driver.beat():
                    self._drain_beside()
                elif not self._driver.stopping:
                    self._driver.stopping = True
                    threading.Thread(target=self._ask_query, daemon=True).start()
            except Fenced as error:
                log.warning("%s", error)
                self.fenced = error
                self._driver.stopping = True
                threading.Thread(target=self._ask_query, daemon=True).start()
                return
            except SemelError as error:
                log.warning("pipeline %r: %s", self._driver.client.pipeline, error)
        if self._draining is not None and self._driver.stopping:
            self._draining.join()  # what is being sent gets its outcome
        atexit.unregister(self.end)
        self._observe()
        try:
            self._driver.beat(ended=True)
        except SemelError as error:
            log.debug("pipeline %r: %s", self._driver.client.pipeline, error)

    def _observe(self) -> None:
        """Notify the observer of what the query did since the last beat."""
        for event in [] if self._progress is None else self._progress.read():
            self._driver.observer.observe(event)

    def _drain_beside(self) -> None:
        """Send resolved events in a separate thread, so that a slow destination delays no beat."""
        if self._between is None or (self._draining is not None and self._draining.is_alive()):
            return
        self._draining = threading.Thread(target=self._drain, args=[self._between], daemon=True)
        self._draining.start()

    def _drain(self, between: threading.Lock) -> None:
        """Send resolved parked events, unless a minibatch is beginning and sends them itself."""
        if between.acquire(blocking=False):
            try:
                self._driver.drain()
            except SemelError as error:
                log.warning("pipeline %r: %s", self._driver.client.pipeline, error)
            finally:
                between.release()
