"""The settings of an ingress, checked before it opens anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.ingress.requests import EntityPlace
from semel.streams import EVENT_BYTES_MAX
from semel.web import require_safe

if TYPE_CHECKING:
    from pathlib import Path

PORT = 8099
TIMEOUT_S = 30.0
REQUEST_TIMES = 8
"""A request may have this many times the bytes of one event."""


@dataclass(frozen=True, slots=True)
class IngressSettings:
    """The settings of `semel ingest`.

    Attributes:
        entity: where the EntityID of an event is.
        event_bytes_max: the most bytes of the data of one event.
        timeout_s: the time in which a request has to arrive.
        pipelines: those that read the stream; without names, those whose identity shows it.
    """

    ledger: str
    stream: str
    host: str = "127.0.0.1"
    port: int = PORT
    token_file: Path | None = None
    entity: EntityPlace = field(default_factory=EntityPlace)
    event_bytes_max: int = EVENT_BYTES_MAX
    partitions: int | None = None
    timeout_s: float = TIMEOUT_S
    pipelines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.event_bytes_max <= EVENT_BYTES_MAX:
            raise ConfigurationError(
                f"--max-bytes must be between 1 and {EVENT_BYTES_MAX}, got {self.event_bytes_max}"
            )
        if not 0 < self.timeout_s <= 3600:
            raise ConfigurationError(
                f"--timeout must be more than 0 and at most 3600 seconds, got {self.timeout_s:g}"
            )
        require_safe(self.host, self.port, has_tokens=self.token_file is not None)

    @property
    def request_bytes_max(self) -> int:
        """The most bytes of a request's body."""
        return REQUEST_TIMES * self.event_bytes_max
