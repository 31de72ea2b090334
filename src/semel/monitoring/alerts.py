"""Alerts: a function is called, or a URL gets a POST, when events were parked.

Always true:
- delivery never waits for an alert and never fails by one: they are sent by a thread of their own;
- what waits is bounded: alerts of one sink that wait are added up to one;
- it reads the ledger as seldom as the metrics do; what is not known then is not in the alert;
- an alert has names and counts, never a payload, an id or a secret; a URL is never logged in full.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from semel.delivery import EventResent, MinibatchCompleted
from semel.errors import ConfigurationError
from semel.events.encoding import canonical
from semel.protocol import ParkedState
from semel.urls import place, require_authority

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.delivery import DeliveryEvent
    from semel.monitoring.parked_figures import ParkedFigures
    from semel.runtime import Clock

TRIES = 3
PAUSE_S = 2.0
TIMEOUT_S = 10.0
READ_WAIT_S = 2.0
"""How long an alert waits for its turn to read what is parked."""
LEAVE_S = 5.0
"""How long the end of a query waits for the last alerts."""
FORM = "https://alerts.example/semel"

log = logging.getLogger("semel")


@dataclass(frozen=True, slots=True)
class Alert:
    """Events of one sink were parked.

    Attributes:
        minibatch: the newest minibatch in which; None if a resent event was parked again.
        parked: how many events were parked since the alert before, those in doubt included.
        in_doubt: how many of them are in doubt.
        dropped: how many events in doubt were dropped by policy `skip`.
        waiting: how many events of the sink are parked now; None if the ledger could not be read,
            or is not read again yet because reading it takes long.
        oldest_s: since when the oldest of them is, in seconds; None if there is none, or as above.
    """

    pipeline: str
    sink: str
    minibatch: str | None
    parked: int
    in_doubt: int
    dropped: int
    waiting: int | None = None
    oldest_s: float | None = None

    def then(self, later: Alert) -> Alert:
        """Return both as one."""
        return Alert(
            self.pipeline,
            self.sink,
            later.minibatch or self.minibatch,
            self.parked + later.parked,
            self.in_doubt + later.in_doubt,
            self.dropped + later.dropped,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


def require_target(target: object, pipeline: str) -> None:
    """Refuse an `alert` that is neither a URL nor a function. Raises `ConfigurationError`."""
    if target is None or (callable(target) and not isinstance(target, type)):
        return
    if not isinstance(target, str):
        kind = type(target).__name__
        raise ConfigurationError(
            f"pipeline {pipeline!r}: alert must be a URL or a function of one alert, got {kind}"
        )
    if not target.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"pipeline {pipeline!r}: alert must be a URL such as {FORM}, or a function"
        )
    require_authority(target, f"pipeline {pipeline!r}: alert", FORM)


class Alerts(threading.Thread):
    """Sends the alerts of one start of a pipeline.

    Attributes:
        sent: how many were taken.
        dropped: how many were not taken after several tries, or not before the query ended.
    """

    def __init__(
        self,
        pipeline: str,
        target: str | Callable[[Alert], object],
        parked: ParkedFigures,
        clock: Clock,
    ) -> None:
        super().__init__(name=f"semel-alerts-{pipeline}", daemon=True)
        self.sent = self.dropped = 0
        self._pipeline = pipeline
        self._to = target
        self._parked = parked
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: dict[str, Alert] = {}
        self._ending = False
        self._logged = False

    def observe(self, event: DeliveryEvent) -> None:
        """Note what was parked; the thread sends it."""
        match event:
            case MinibatchCompleted():
                for sink, each in event.figures.items():
                    if each.parked or each.dropped:
                        at = str(event.minibatch)
                        counts = (each.parked, each.doubted, each.dropped)
                        self._note(Alert(event.pipeline, sink, at, *counts))
            case EventResent(state=ParkedState.HELD | ParkedState.REJECTED as state):
                doubted = int(state is ParkedState.HELD)
                self._note(Alert(event.pipeline, event.sink, None, 1, doubted, 0))
            case _:
                return

    def _note(self, alert: Alert) -> None:
        with self._changed:
            before = self._waiting.get(alert.sink)
            self._waiting[alert.sink] = alert if before is None else before.then(alert)
            self._changed.notify_all()

    def run(self) -> None:
        """Send what waits, until the query has ended and nothing waits."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if not self._waiting:
                    return
            self.send_next()

    def send_next(self) -> None:
        """Send one of the alerts that wait."""
        with self._changed:
            taken = self._waiting.pop(next(iter(self._waiting)))
        self._send(taken)

    def _send(self, alert: Alert) -> None:
        complete = self._completed(alert)
        last: Exception | None = None
        for left in reversed(range(TRIES)):
            try:
                self._deliver(complete)
            except Exception as error:  # noqa: BLE001 - whatever a function or a server raises
                last = error
            else:
                self.sent += 1
                return
            if left and not self._ending:
                self._clock.sleep(PAUSE_S)
        self.dropped += 1
        if not self._logged:
            log.warning(
                "pipeline %r: an alert was not taken after %d tries (others are not logged): %s",
                self._pipeline,
                TRIES,
                self._words(last),
            )
        self._logged = True

    def _completed(self, alert: Alert) -> Alert:
        """Return the alert with what is parked now."""
        found = self._parked.read_in_turn(0.0 if self._ending else READ_WAIT_S)
        ages = None if found is None else found.sinks.get(alert.sink)
        if ages is None or ages.damaged:
            return alert
        oldest = min(ages.oldest.values(), default=None)
        age = None if oldest is None else round(max(0.0, self._clock.wall() - oldest), 3)
        counts = (alert.parked, alert.in_doubt, alert.dropped, sum(ages.counts.values()))
        return Alert(alert.pipeline, alert.sink, alert.minibatch, *counts, age)

    def _deliver(self, alert: Alert) -> None:
        if callable(self._to):
            self._to(alert)
            return
        import urllib.error
        import urllib.request

        request = urllib.request.Request(  # noqa: S310 - http or https: checked before
            self._to,
            canonical(alert.to_json()).encode(),
            {"Content-Type": "application/json", "User-Agent": "semel"},
            method="POST",
        )
        try:
            with _opener().open(request, timeout=TIMEOUT_S) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def _words(self, error: Exception | None) -> str:
        """Return what went wrong, without the URL, which may hold a token."""
        if callable(self._to):
            return repr(error)
        from urllib.error import HTTPError

        if isinstance(error, HTTPError):
            return f"{place(self._to)} answered {error.code}"
        return f"{place(self._to)}: {type(error).__name__}"

    def close(self) -> None:
        """End after what waits, for which it waits a few seconds; count the rest as dropped."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self.is_alive():
            self.join(LEAVE_S)
        with self._changed:
            self.dropped += len(self._waiting)
            self._waiting.clear()


@cache
def _opener() -> Any:
    """Return what sends a POST to the URL and to no other: a redirect would make it a GET, and what
    answers that has not got the alert.
    """
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirect(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Follow none: the answer is an error."""

    return build_opener(NoRedirect)
