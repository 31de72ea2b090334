"""Two different ids never give one text, wherever an id becomes text.

The ids of a pipeline are of one shape, which the ledger holds it to: the integer 1 and the text "1"
never meet in one pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.events import Chunk, EventID, Given
from semel.ledger import keys
from semel.operate import event_names
from semel.sinks.http.templates import key_header, key_text
from semel.sinks.kafka.records import Shape, records_of
from semel.sinks.postgres.effects import staged_columns
from semel.sinks.postgres.parameters import Parameters
from semel.sinks.redis import progress_row as redis_row
from support.sinks.postgres_pipeline import PostgresDesk

NASTY = st.text(st.sampled_from(",\\%/=\"'(): 1ab\x00\n\x85é🙂"), max_size=5)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-12, 12)
SHAPES = st.lists(st.sampled_from([NASTY, NUMBERS]), min_size=1, max_size=3)
SETS = SHAPES.flatmap(lambda parts: st.lists(st.tuples(*parts), min_size=2, unique=True))


def cut(text: str) -> list[tuple[int | str, ...]]:
    """Every id of two parts that this text may be, if any one character of it separates them."""
    apart = {(text[:at], text[at + 1 :]) for at in range(len(text))}
    return sorted(apart | {(text[:at], text[at:]) for at in range(len(text) + 1)})


CUTS = st.text(st.sampled_from(",\\%/=\"'a2C5"), min_size=3, max_size=9).map(cut)


def chunk(ids: list[tuple[int | str, ...]]) -> Chunk:
    """Events of one entity with these ids."""
    names = [f"p{at}" for at in range(len(ids[0]))]
    columns = {name: list(part) for name, part in zip(names, zip(*ids, strict=True), strict=True)}
    ordered = pa.Table.from_pydict(columns).sort_by([(name, "ascending") for name in names])
    batch = ordered.append_column("c", pa.array(["e"] * len(ids))).combine_chunks().to_batches()[0]
    rows = Given(entity="c", event=tuple(names)).stamper("0").stamp(batch)
    return Chunk(rows, 0, len(ids), "key", 1, "pay/out/")


def kafka(made: Chunk) -> list[Any]:
    named = dict(records_of(made, Shape(stamps=("event",)), "pay").named)
    return list(named["semel-event"].to_pylist())


def applied(made: Chunk) -> list[Any]:
    arrays, names = staged_columns(made, "here")
    return list(arrays[names.index("semel_event")].to_pylist())


def one_by_one(made: Chunk) -> list[Any]:
    return [each["semel_event"] for each in Parameters("%(semel_event)s").of(made)[1]]


def refused(made: Chunk) -> list[Any]:
    """As Redis' row reports refused events, sent and unsent."""
    rows = made.rows
    sent = b"[%s]" % b",".join(b'[%d,"no"]' % at for at in range(len(rows)))
    unfit = redis_row.unfit_text(rows, dict.fromkeys(range(len(rows)), "no")).encode()
    told = redis_row.refusals(unfit, sent, redis_row.events_bytes(rows))
    ids = [event for (_, _, event), _ in told]
    assert ids[: len(rows)] == ids[len(rows) :] == rows.all_ids()
    return ids[: len(rows)]


def of_ids(write: Callable[[EventID], str]) -> Callable[[Chunk], list[Any]]:
    return lambda made: [write(each) for each in made.rows.all_ids()]


def of_keys(write: Callable[[str], str]) -> Callable[[Chunk], list[Any]]:
    return lambda made: [write(event.key) for event in made.events()]


TEXTS: dict[str, Callable[[Chunk], list[Any]]] = {
    "key": of_keys(str),
    "idempotency key": of_keys(key_header),
    "key in a URL": of_keys(key_text),
    "kafka header": kafka,
    "postgres apply": applied,
    "postgres each": one_by_one,
    "redis row": refused,
    "ledger key": of_ids(lambda id_: keys.written_part(keys.written_event(id_))),
    "handle": of_ids(event_names.write_id),
}


@pytest.mark.parametrize("where", list(TEXTS))
@settings(deadline=None, max_examples=150)
@given(ids=SETS | CUTS)
def test_two_ids_never_give_one_text(where: str, ids: list[tuple[int | str, ...]]) -> None:
    made = TEXTS[where](chunk(ids))
    assert len(made) == len(ids)
    assert len(set(made)) == len(ids), made


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(NUMBERS, st.text(st.characters(exclude_characters=",\\",
                exclude_categories=["Cs"]), max_size=5)), min_size=1, unique=True))  # fmt: skip
def test_an_id_without_a_comma_has_the_text_that_it_always_had(ids: list[tuple[int, str]]) -> None:
    made = chunk(list(ids))
    wanted = [",".join(map(str, each)) for each in made.rows.all_ids() if isinstance(each, tuple)]
    assert applied(made) == one_by_one(made) == wanted


def test_a_single_id_is_itself_with_all_its_commas() -> None:
    made = chunk([("1,2",), ("\\",)])
    assert applied(made) == one_by_one(made) == ["1,2", "\\"]


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> Iterator[PostgresDesk]:
    made = PostgresDesk(postgres_url, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "way",
    [
        {
            "apply": "insert into seen select semel_entity, semel_event from semel_batch"
            " on conflict do nothing"
        },
        {
            "each": "insert into seen values (%(semel_entity)s, %(semel_event)s)"
            " on conflict do nothing"
        },
    ],
    ids=["apply", "each"],
)
def test_a_key_of_semel_event_takes_no_two_events_for_one(
    desk: PostgresDesk, way: dict[str, str]
) -> None:
    desk.execute("create table seen (entity text, event text, primary key (entity, event))")
    ids = [("1,2", "3"), ("1", "2,3"), ("1\\", "2,3"), ("1\\,2", "3"), ("1\\,2,3", "")]
    desk.deliver(desk.open(desk.sink(**way)), chunk(list(ids)))
    assert desk.execute("select count(*) from seen") == [(5,)]
