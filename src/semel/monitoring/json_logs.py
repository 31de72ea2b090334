"""Log lines as JSON: one object for each line, with the figures of semel by name."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

from semel.delivery import FIELDS
from semel.events.encoding import canonical


class JsonLogs(logging.Formatter):
    """A formatter of `logging` that writes each record as one line of JSON.

    `time` (UTC), `level`, `logger` and `message` are always there; `error` if there was one. For a
    line about a minibatch also its figures: `pipeline`, `run`, `minibatch`, `delivered`, ...

        handler = logging.StreamHandler()
        handler.setFormatter(semel.JsonLogs())
        logging.getLogger("semel").addHandler(handler)
    """

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return what the line has, by name."""
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        made = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            made["error"] = self.formatException(record.exc_info)
        return {**getattr(record, FIELDS, {}), **made}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return canonical(self.fields(record))
