"""The stage after files: a manifest is handed on to be loaded, once.

Always true: a loader is asked only for a manifest that is in place, and asked again until it has
said that it was loaded; so a load that is not one transaction with its key has to bear a repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from semel.errors import OutcomeUnknown
from semel.sinks.unrun import left_to_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.sinks.files.manifests import Manifest


@runtime_checkable
class Loader(Protocol):
    """Loads manifests. Runs on the driver, after the ledger has the minibatch complete."""

    def known(self, manifest: Manifest) -> bool:
        """Say whether this manifest was loaded: by its `key`."""

    def load(self, manifest: Manifest) -> None:
        """Load it, with its key in the same transaction: where the key stands already, do nothing.

        Raises `NotDelivered` or `OutcomeUnknown` where it may be tried again, `Rejected` where
        that is no use.
        """


@dataclass(frozen=True)
class Handed:
    """A function as a loader: it is called again after a crash, with the same key."""

    function: Callable[[Manifest], object]

    def known(self, manifest: Manifest) -> bool:
        """Nobody can tell."""
        del manifest
        return False

    def load(self, manifest: Manifest) -> None:
        """Hand it over. Raises `OutcomeUnknown` for a function that leaves something to be run."""
        left = left_to_run(self.function(manifest))
        if left is not None:
            raise OutcomeUnknown(f"the function that loads {manifest.key!r} gave {left}")
