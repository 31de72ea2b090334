"""Comparing C, the last OSN transmitted, with L, the last OSN of the last complete minibatch.

C = L: nothing of the minibatch was sent. C > L: L+1..C are suppressed. C < L: the destination lost
what it had acknowledged, or it is another destination; C+1..L cannot be made up from this
minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Of the events L+1..L+n: how many are there, and how many acknowledged ones are gone."""

    suppressed: int
    gone: int


def outstanding(last_complete: int, last_transmitted: int) -> Outstanding:
    """Say what a replay suppresses, given L and C."""
    return Outstanding(
        suppressed=max(0, last_transmitted - last_complete),
        gone=max(0, last_complete - last_transmitted),
    )
