"""The worlds that TLC explores, and the bugs that are planted in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SAFETY = (
    "NoEventTwice",
    "NoSilentLoss",
    "NothingLeftOut",
    "OrderWithinEntity",
    "DoubtIsBounded",
    "NumbersAreIdentical",
    "NumbersHaveNoGap",
)
LIVENESS = "NeverStuck"

CAPABILITIES = ("transactional", "sequenced", "repeatable", "probing", "opaque")

Cuts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class World:
    """One run of TLC.

    Attributes:
        cuts: for each checkpoint, where its micro-batches end in the input of a partition.
        entities: the entity of each event of a partition.
        crashes: of a task, a driver or a checkpoint, in all.
        losses: commits to the ledger that are late, or whose reply is lost.
        drops: the same for calls to the destination.
        decisions: of a person, about an event in doubt.
        properties: what is checked.
    """

    name: str
    capability: str
    cuts: Cuts
    entities: tuple[int, ...]
    partitions: int = 1
    on_doubt: str = "hold"
    chunk_rows: int = 1
    span_chunks: int = 2
    crashes: int = 0
    losses: int = 0
    drops: int = 0
    decisions: int = 0
    forgets: bool = False
    bug: str = "none"
    properties: tuple[str, ...] = SAFETY

    @property
    def module(self) -> str:
        """The module with the constants that a configuration file cannot hold."""
        cuts = ", ".join(_sequence(each) for each in self.cuts)
        return (
            "---- MODULE World ----\nEXTENDS Protocol\n"
            f"TheCuts == <<{cuts}>>\nTheEntities == {_sequence(self.entities)}\n"
            f"ThePartitions == 1..{self.partitions}\n====\n"
        )

    @property
    def settings(self) -> str:
        """The configuration file."""
        chunks = 1 if self.capability == "opaque" else self.span_chunks
        kinds = (
            ("PROPERTY" if name == LIVENESS else "INVARIANT", name) for name in self.properties
        )
        lines = [
            "SPECIFICATION Spec",
            "CHECK_DEADLOCK FALSE",
            "CONSTANTS",
            f'  Capability = "{self.capability}"',
            f'  OnDoubt = "{self.on_doubt}"',
            "  Partitions <- ThePartitions",
            "  Entities <- TheEntities",
            "  Cuts <- TheCuts",
            f"  ChunkRows = {self.chunk_rows}",
            f"  SpanChunks = {chunks}",
            f"  Crashes = {self.crashes}",
            f"  Losses = {self.losses}",
            f"  Drops = {self.drops}",
            f"  Decisions = {self.decisions}",
            f"  Forgets = {str(self.forgets).upper()}",
            f'  Bug = "{self.bug}"',
            "  None = None",
            *(f"{kind} {name}" for kind, name in kinds),
        ]
        return "\n".join(lines) + "\n"


def _sequence(numbers: Iterable[int]) -> str:
    return f"<<{', '.join(map(str, numbers))}>>"


# -- worlds in which everything must hold


def _each(name: str, world: World) -> list[World]:
    """The same world for each capability."""
    return [replace(world, name=f"{each}, {name}", capability=each) for each in CAPABILITIES]


LOST = World("", "", ((2, 3), (1, 3)), (1, 2, 1), crashes=1, losses=1, drops=1)
"""Two micro-batches; the checkpoint may be lost, and then they end elsewhere."""
TWO = World("", "", ((2,),), (1, 1), partitions=2, crashes=1)
LIVES = World("", "", ((2,), (1, 2)), (1, 1), crashes=1, drops=1, properties=(LIVENESS,))

POLICIES = [
    World(
        "opaque, a person decides", "opaque", ((2, 3),), (1, 1, 1), crashes=1, drops=1, decisions=1
    ),
    World("opaque, windows of two events", "opaque", ((3,),), (1, 2, 1), chunk_rows=2, crashes=2),
    World("opaque, sent again", "opaque", ((2,),), (1, 1), on_doubt="resend", crashes=1, drops=1),
    World("opaque, skipped", "opaque", ((2,),), (1, 1), on_doubt="skip", crashes=1, losses=1),
    World("repeatable, keys forgotten", "repeatable", ((2,),), (1, 1), crashes=1, forgets=True),
]

STANDARD = [
    *_each("a lost checkpoint", LOST),
    *_each("two partitions", TWO),
    *_each("never stuck", LIVES),
    *POLICIES,
]

LARGE = [
    *STANDARD,
    *_each("two crashes", replace(LOST, crashes=2)),
    *_each("two partitions, a lost call", replace(TWO, drops=1, cuts=((2,), (1, 2)))),
    *_each("three minibatches", replace(LOST, cuts=((1, 2, 3), (2, 3)), drops=0)),
]

# -- planted bugs


def _bug(bug: str, found_by: str, world: World) -> World:
    return replace(world, name=bug, bug=bug, properties=(found_by,))


def _small(
    capability: str,
    cuts: Cuts = ((2,),),
    partitions: int = 1,
    crashes: int = 0,
    losses: int = 0,
    drops: int = 0,
) -> World:
    """Events of one entity, and few faults."""
    return World(
        "",
        capability,
        cuts,
        (1,) * cuts[0][-1],
        partitions=partitions,
        crashes=crashes,
        losses=losses,
        drops=drops,
    )


def _free(world: World) -> World:
    """Each event of an entity of its own, so that none waits for another."""
    return replace(world, entities=tuple(range(1, len(world.entities) + 1)))


AGAIN: Cuts = ((2,), (2,))
"""A checkpoint is lost, and the second reads all of the input again."""

PLANTED = [
    _bug("effect before intent", "NoEventTwice", _small("opaque", crashes=1)),
    _bug("claim without the row open", "NoEventTwice", _small("opaque", ((1,), (1,)), crashes=1)),
    _bug("a write requires nothing", "NoEventTwice", _free(_small("opaque", ((3,),), crashes=1))),
    _bug("take-over without fencing", "NoEventTwice", _small("probing", ((3,),), crashes=1)),
    _bug("a take-over does not wait", "NoEventTwice", _small("probing", crashes=1)),
    _bug("an intended span is sent again", "NoEventTwice", _small("opaque", crashes=1)),
    _bug(
        "an intent does not name its attempt",
        "NoEventTwice",
        _free(_small("opaque", crashes=1, losses=1)),
    ),
    _bug("the destination does not fence", "NoEventTwice", _small("sequenced", crashes=1)),
    _bug("the watermark is forgotten", "NoEventTwice", _small("transactional", AGAIN, crashes=1)),
    _bug(
        "a key is used after it may be forgotten",
        "NoEventTwice",
        replace(_small("repeatable", crashes=1), forgets=True),
    ),
    _bug("a doubt is not recorded", "NoSilentLoss", _small("opaque", crashes=1, drops=1)),
    _bug(
        "complete before every partition",
        "NothingLeftOut",
        _small("transactional", ((1,),), partitions=2),
    ),
    _bug("a doubt does not block its entity", "OrderWithinEntity", _small("opaque", drops=1)),
    _bug("a lost reply counts as a conflict", "DoubtIsBounded", _small("opaque", losses=1)),
    _bug(
        "complete is not idempotent",
        "NumbersHaveNoGap",
        _small("transactional", ((1, 2),), losses=1),
    ),
    _bug("a replay gives other numbers", "NumbersHaveNoGap", _small("sequenced", crashes=1)),
    _bug(
        "a replay gives other numbers",
        "NumbersAreIdentical",
        _small("transactional", crashes=1),
    ),
    _bug("a take-over refuses every pending row", LIVENESS, _small("opaque", ((1,),), crashes=1)),
]
