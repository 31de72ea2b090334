"""A session with Redis: one script takes the progress row, one per chunk applies the effects.

Always true:
- a chunk is one script, and a script is never split and sent again: the row has its outcome;
- a row that is missing, or is behind what Redis acknowledged before, stops the pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import (
    ConfigurationError,
    Fenced,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
)
from semel.sinks.progress import lost
from semel.sinks.redis import progress_row
from semel.sinks.redis.connection import NOT_ALLOWED
from semel.sinks.redis.scripts import TAKE_OVER
from semel.sinks.redis.templates import fill
from semel.sinks.sink import DELIVERED, Receipt

if TYPE_CHECKING:
    from semel.errors import DeliveryError
    from semel.events import Chunk
    from semel.sinks.progress import Progress
    from semel.sinks.redis.connection import RedisConnection
    from semel.sinks.redis.sink import Redis
    from semel.sinks.sink import Target


class RedisSession:
    """One connection of one attempt at one partition."""

    def __init__(self, sink: Redis, line: RedisConnection, target: Target) -> None:
        self._sink = sink
        self._line = line
        self._target = target
        self._keys = progress_row.row_keys(target, sink.tag)

    def take_over(self) -> Progress | None:
        """Write this attempt into the row, whatever it has; return the row as it was before."""
        target = self._target
        ours = progress_row.standing(target.minibatch, target.attempt)
        reply = self._line.run(TAKE_OVER, self._keys, ours)
        if reply[0] != b"done":
            raise self._refusal(reply)
        self._wait_for_replicas()
        found, chunks = _pairs(reply[1]), _pairs(reply[2])
        return progress_row.read(found, chunks) if found else None

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Move the row, then run each event of the chunk, in one script."""
        sink, rows = self._sink, chunk.rows
        filled = fill(rows.batch, sink.key_templates, sink.argument_templates)
        keys, arguments = filled.wire()
        if len(keys) + len(arguments) > sink.chunk_bytes:
            raise Rejected(
                f"{len(keys) + len(arguments):,} bytes for one script, but chunk_bytes of sink "
                f"{sink.name!r} is {sink.chunk_bytes:,}"
            )
        sent = rows.take(filled.fit)
        header = progress_row.moved(
            progress,
            progress_row.unfit_text(rows, filled.unfit),
            progress_row.events_bytes(sent),
        )
        width, many = len(filled.arguments), len(filled.keys)
        header += [b"%d" % width, b"%d" % many, sink.command.encode()]
        more = (len(sent) * many, keys, len(sent) * width, arguments)
        reply = self._line.run(sink.lua, self._keys, header, more)
        if reply[0] != b"done":
            raise self._refusal(reply, progress)
        self._wait_for_replicas()
        places = filled.fit.nonzero()[0]
        why: dict[int, DeliveryError] = {
            at: Rejected(reason) for at, reason in filled.unfit.items()
        }
        stop = int(reply[2]) - 1  # from there on nothing was tried, because of what may pass
        for at, reason in progress_row.outcomes(reply[1]):
            passes = 0 <= stop <= at
            why[int(places[at])] = NotDelivered(reason) if passes else Rejected(reason)
        return Receipt({at: why[at] for at in sorted(why)}) if why else DELIVERED

    def close(self) -> None:
        """Close the connection; there is nothing to roll back."""
        self._line.close()

    # -- errors of Redis

    def _refusal(self, reply: list[Any], progress: Progress | None = None) -> SemelError:
        """Return the error for a script that did nothing."""
        kind, text = reply[0], progress_row.cleaned(reply[1].decode(errors="replace"))
        where = f"{self._line.shown}, row {self._keys[0].decode()!r}"
        if kind == b"fenced":
            return Fenced(f"{where}: the progress row names {text}")
        if kind == b"lost" and progress is not None:
            return lost(f"{where} (`semel explain` shows what it keeps)", progress.after, int(text))
        if kind == b"foreign":
            return ConfigurationError(
                f"{where}: the key is used by something else ({text}). Keys that begin with "
                "'semel:' are reserved for semel; move it away, or upgrade semel if a later "
                "version wrote it"
            )
        if kind == b"stopped" and (text.split(" ")[0] in NOT_ALLOWED or "The user exec" in text):
            return self._line.forbidden(text)
        if kind == b"stopped":
            return NotDelivered(f"{where}: nothing was written: {text}")
        return OutcomeUnknown(f"{where}: unknown answer of the script: {kind!r}")

    def _wait_for_replicas(self) -> None:
        """Let so many replicas have it before it counts as delivered."""
        sink = self._sink
        if not sink.replicas:
            return
        milliseconds = max(1, int(sink.replicas_within_s * 1000))
        try:
            have = int(self._line.ask(b"WAIT", b"%d" % sink.replicas, b"%d" % milliseconds))
        except NotDelivered as error:  # of the question, not of what the script did
            raise OutcomeUnknown(str(error)) from error
        if have < sink.replicas:
            raise OutcomeUnknown(
                f"{self._line.shown}: {have} of {sink.replicas} replicas have acknowledged within "
                f"{sink.replicas_within_s:g} s"
            )


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """Make a mapping of the list that HGETALL returns to a script."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
