"""The progress row in Redis: a hash, and the ids of its minibatch in another hash.

Always true:
- the ids of a minibatch are one text for each chunk, never one text that every chunk rewrites;
- events that the last chunk rejected are in the row by place among those sent, and their scope and
  id are next to them, as columns.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import ConfigurationError
from semel.events import Attempt, EntityIds, Minibatch, key_part
from semel.events.encoding import ascii_json
from semel.sinks.progress import UNREADABLE, Progress
from semel.sinks.redis.templates import OWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.events import EventID, Rows
    from semel.sinks.sink import Target

Named = tuple[int, str, "EventID"]
"""Position, scope and id of an event."""


def row_keys(target: Target, tag: bytes | None) -> tuple[bytes, bytes]:
    """Return the keys of the row and of its ids: under the hash tag of the events' keys, if there
    is one.
    """
    names = (target.pipeline, target.sink, target.partition)
    place = b"%s%s" % (
        b"" if tag is None else b"{%s}:" % tag,
        "/".join(map(key_part, names)).encode(),
    )
    return OWN + place, OWN + place + b"/ids"


def moved(progress: Progress, unfit: str, events: bytes) -> list[bytes]:
    """Return the first arguments of the script that moves the row."""
    ids = progress.ids.written().content if progress.ids else b""
    return [
        *standing(progress.minibatch, progress.attempt),
        b"%d" % progress.done,
        b"%d" % progress.start,
        b"%d" % progress.osn,
        progress.digest.encode(),
        ascii_json(progress.sort_key).encode(),
        ids,
        unfit.encode(),
        events,
        b"%d" % progress.after,
    ]


def standing(minibatch: Minibatch, attempt: Attempt) -> list[bytes]:
    """Return minibatch and attempt as the scripts compare them."""
    numbers = (minibatch.generation, minibatch.batch, attempt.run, attempt.task)
    return [b"%d" % number for number in numbers]


def read(found: Mapping[bytes, bytes], chunks: Mapping[bytes, bytes]) -> Progress:
    """Read the row. Raises `ConfigurationError` for one that semel did not write."""
    try:
        text = {name.decode(): value for name, value in found.items()}
        rejected: dict[int, str] = {}
        events: dict[int, tuple[str, EventID]] = {}
        for (position, scope, event), why in refusals(
            text["unfit"], text["refused"], text["events"]
        ):
            rejected[position] = why
            events[position] = (scope, event)
        return Progress(
            minibatch=Minibatch(int(text["generation"]), int(text["batch"])),
            attempt=Attempt(int(text["run"]), int(text["task"])),
            done=int(text["done"]),
            start=int(text["start"]),
            osn=int(text["osn"]),
            digest=text["digest"].decode(),
            sort_key=json.loads(text["sort_key"]),
            ids=EntityIds.union(
                EntityIds.from_json(json.loads(ids))
                for place, ids in chunks.items()
                if place.startswith(b"%b.%b." % (text["generation"], text["batch"]))
            ),
            rejected=rejected,
            rejected_events=events,
        )
    except (*UNREADABLE, pa.ArrowException) as error:
        raise ConfigurationError(
            f"the progress row in Redis cannot be read ({type(error).__name__}): another program "
            "has written there. Check the keys that begin with 'semel:'"
        ) from error


# -- who was refused


def unfit_text(rows: Rows, unfit: Mapping[int, str]) -> str:
    """Write down rows that are not even sent, with who they are."""
    if not unfit:
        return ""
    named = [
        [int(rows.positions[at]), rows.scope(at), rows.id(at), why] for at, why in unfit.items()
    ]
    return ascii_json(named)


def events_bytes(rows: Rows) -> bytes:
    """Return scope and id of the sent rows; the row keeps them if one of them was rejected."""
    if not len(rows):
        return b""
    scopes = rows.scopes.names.array.take(pa.array(rows.scopes.codes))
    arrays = [pa.array(rows.positions), scopes, *rows.ids]
    names = [str(at) for at in range(len(arrays))]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(out.getvalue().to_pybytes())


def outcomes(text: bytes) -> list[tuple[int, str]]:
    """Read the script's result for the events it was sent: place among them, and reason."""
    if not text:
        return []
    return [(int(at), cleaned(why)) for at, why in json.loads(text.decode(errors="replace"))]


def refusals(unfit: bytes, refused: bytes, events: bytes) -> list[tuple[Named, str]]:
    """Read who was refused, and why, from the row."""
    found: list[tuple[Named, str]] = []
    for position, scope, event, why in json.loads(unfit) if unfit else []:
        found.append(((position, scope, _id(event)), why))
    rejected = outcomes(refused)
    if rejected:
        columns = [array.to_pylist() for array in pa.ipc.open_stream(events).read_all().columns]
        for at, why in rejected:
            position, scope, *ids = (column[at] for column in columns)
            found.append(((position, scope, _id(ids if len(ids) > 1 else ids[0])), why))
    return found


def _id(event: Any) -> EventID:
    made: EventID = tuple(event) if isinstance(event, list) else event
    return made


def cleaned(text: str) -> str:
    """Return an error of Redis without what its Lua put around it."""
    plain = text.strip()
    while plain.startswith(("@user_script:", "user_script:")):
        plain = plain.partition(":")[2].lstrip().partition(":")[2].strip()
    return plain.removeprefix("-")
