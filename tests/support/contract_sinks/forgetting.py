"""TRANSACTIONAL sinks that do not notice, or do not keep, what was acknowledged."""

from __future__ import annotations

from dataclasses import replace

from semel.sinks import Progress
from support.contract_sinks.honest import HonestTransactional


class IgnoresLoss(HonestTransactional):
    """Goes on where the row was deleted or put back."""

    def moved(self, progress: Progress) -> Progress:
        return super().moved(replace(progress, after=0))


class IgnoresLossOfAll(HonestTransactional):
    """Notices a row that was put back, and not one that was deleted."""

    def moved(self, progress: Progress) -> Progress:
        return super().moved(replace(progress, after=0) if self.read() is None else progress)


class ForgetsNumber(HonestTransactional):
    """The number up to which a row is done is not kept."""

    def write(self, progress: Progress) -> None:
        super().write(replace(progress, osn=0))


class ForgetsNumberWhenTaken(HonestTransactional):
    """Whoever takes over begins with a row that has nothing."""

    def take_over(self) -> Progress | None:
        stood = super().take_over()
        if stood is not None and stood.minibatch != self.target.minibatch:
            with self.transaction():
                self.write(Progress(self.target.minibatch, self.target.attempt))
        return stood
