"""Whether the topics that are read are still those that were delivered from.

A topic that was deleted and made anew has its name and begins its offsets anew, so the watermarks
of the old one would skip its events as delivered; its id is another. Always true: an id that is not
known is never taken for the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import Diverged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.ledger.minibatches import Wish


@dataclass(frozen=True, slots=True)
class Sources:
    """What Kafka says of the topics that Spark reads.

    Attributes:
        ids: the id of each topic.
        why: why there are topics whose id is not known.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    why: str = "nobody could be asked"


UNKNOWN = Sources()


def compare(pipeline: str, known: Mapping[str, str], wish: Wish, *, lost: bool) -> dict[str, str]:
    """Give the ids of all topics that were ever read; `lost` says that a checkpoint was.

    Raises `Diverged` when a topic was made anew, and, where only its id could show that, when its
    id was known and is not any more.
    """
    told = wish.sources
    for topic, before in known.items():
        now = told.ids.get(topic, before)
        if now != before:
            raise Diverged(
                f"pipeline {pipeline!r}: topic {topic!r} was made anew. Its id is {now}, what was "
                f"delivered came from the one with the id {before}, and offsets begin anew with "
                "the topic, so its events would be skipped as delivered. Nothing was sent. Start "
                "under a new name"
            )
    read = known if wish.starts is None else {name.rpartition("/")[0] for name in wish.starts}
    unknown = [topic for topic in sorted(known) if topic in read and topic not in told.ids]
    if lost and unknown and not wish.accept_gap:
        raise Diverged(
            f"pipeline {pipeline!r}: the checkpoint was lost, and nobody can tell whether topic "
            f"{unknown[0]!r} is still the one with the id {known[unknown[0]]} that was delivered "
            f"from: {told.why}. Were it made anew, its events would be skipped as delivered. "
            "Nothing was sent. Mend that, or look for yourself and say accept_gap=True to go on "
            "without comparing"
        )
    return {**known, **told.ids}
