"""How long a call that surely delivered nothing is tried again: backoff with jitter and a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from semel.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Retry:
    """Wait `first_s`, then twice as long each time up to `most_s`, until `for_s` have passed in
    all, calls and pauses together. A call that has begun is not cut short.
    """

    first_s: float = 0.1
    most_s: float = 10.0
    for_s: float = 60.0

    def __post_init__(self) -> None:
        if not (self.first_s > 0 and self.most_s > 0):
            raise ConfigurationError(
                f"{self}: first_s and most_s must be greater than 0, otherwise the retries never "
                "end"
            )

    def tries(self, runtime: Runtime, *, only_pauses: bool = False) -> Iterator[None]:
        """Begin one try after the other, each after its pause, until `for_s` have passed: by the
        clock, or, for tries that have to wait themselves, by the pauses between them only.
        """
        monotonic = None if only_pauses else runtime.clock.monotonic
        for wait_s in self.waits(runtime.random, monotonic):
            if wait_s:
                runtime.clock.sleep(wait_s)
            yield

    def waits(
        self, random: Random, monotonic: Callable[[], float] | None = None
    ) -> Iterator[float]:
        """Return how long to wait before each try: zero before the first, then each pause."""
        pauses = self.pauses(random, monotonic)  # time counts from before the first try
        yield 0.0
        yield from pauses

    def pauses(
        self, random: Random, monotonic: Callable[[], float] | None = None
    ) -> Iterator[float]:
        """Return the pauses, each between half and all of its step, until `for_s` have passed: by
        their sum, and by the clock if there is one.
        """
        began = monotonic() if monotonic is not None else 0.0
        return self._pauses(random, monotonic, began)

    def _pauses(
        self, random: Random, monotonic: Callable[[], float] | None, began: float
    ) -> Iterator[float]:
        paused, step = 0.0, self.first_s
        while True:
            spent = paused if monotonic is None else max(paused, monotonic() - began)
            if spent >= self.for_s:
                return
            pause = min(step * (0.5 + random.random() / 2), self.for_s - spent)
            yield pause
            paused += pause
            step = min(step * 2, self.most_s)
