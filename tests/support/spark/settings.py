"""The settings of a driver script: plain values that travel as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One start of one query.

    Attributes:
        house: the charge server's URL.
        how: `semel` delivers with `semel.deliver`, `plain` with `foreachBatch` alone, as people do.
        sink: the capability, or several; `sink_settings` go to each (see `destinations`).
        identity: the words of `semel.deliver`: {"entity": ..., "event": ...}.
        source: `files` (JSON lines of customer, payment_id, amount), `positions` (a table), or a
            format with `options`.
        input: the folder of files, or the table of positions.
        max_files: files, or offsets of each partition, in one micro-batch.
        trigger: seconds between micro-batches; None takes what is there and ends.
        steps: where the driver asks whether it dies (`faults.STEPS`); sinks have their own.
        where: a condition that the rows of the source have to meet.
        counted: whether each row that is computed is reported to the charge server, as `row/ID`.
        stops: after how many charges each the query is stopped and started again (`rounds`).
        orderly: whether `semel.stop` stops it, and not the query's own method.
    """

    house: str
    input: str
    checkpoint: str
    ledger: str | None = None
    master: str = "local[2,4]"
    how: str = "semel"
    name: str = "charges"
    sink: str | list[str] = "opaque"
    sink_settings: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(
        default_factory=lambda: {"entity": "customer", "event": "payment_id"}
    )
    words: dict[str, Any] = field(default_factory=dict)
    source: str = "files"
    options: dict[str, str] = field(default_factory=dict)
    max_files: int = 1
    trigger: float | None = None
    delay_s: float = 0.0
    steps: list[str] = field(default_factory=list)
    where: str = "true"
    counted: bool = False
    stops: list[int] = field(default_factory=list)
    orderly: bool = False
    conf: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))
