"""Files as a destination: part files that a replay overwrites, and a manifest a minibatch."""

from semel.sinks.files.manifests import Loader, Manifest
from semel.sinks.files.sink import Files, committed, read

__all__ = ["Files", "Loader", "Manifest", "committed", "read"]
