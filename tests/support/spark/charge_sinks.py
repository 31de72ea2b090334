"""Sinks of every capability whose destination is a charge server; Python workers import this.

Each has `url`, and with `steps` it asks at the charge server, where it reaches one of them,
whether its process dies there (see `faults`). The ledger's steps are watched in every process that
unpickles the sink.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semel.errors import NotDelivered, OutcomeUnknown
from semel.events import Chunk, EntityIds, Event, IdSet, Minibatch
from semel.protocol import Capability, OnDoubt
from semel.sinks import DELIVERED, Function, Progress, Receipt, Retry, Sink, Tail, Target
from semel.verify.demo.charge_server import ChargeClient, charge_client
from support.spark import faults

Body = dict[str, Any]


@dataclass(frozen=True)
class Watched:
    """What is watched at its steps, in whatever process it wakes up."""

    def reach(self, step: str) -> None:
        if step in self.steps:  # type: ignore[attr-defined]
            faults.reach(self.url, step)  # type: ignore[attr-defined]

    def __setstate__(self, state: Body) -> None:
        self.__dict__.update(state)
        faults.install(state["url"], state["steps"])


# -- OPAQUE


@dataclass(frozen=True)
class ChargeFunction(Watched):
    """A function that charges one event: what a user has."""

    url: str
    sink: str = "charge"
    delay_s: float = 0.0
    steps: tuple[str, ...] = ()

    def __call__(self, event: Event) -> None:
        self.reach("effect.before")
        time.sleep(self.delay_s)
        charge_client(self.url).ask(
            "/charge",
            {"sink": self.sink, "pid": os.getpid(), "charges": [charge_of(event)]},
        )
        self.reach("effect.after")


def charge_of(event: Event) -> Body:
    amount = event.value.get("amount")
    return {
        "entity": event.entity,
        "event": event.id,
        "osn": event.osn,
        "amount": amount,
        "key": event.key,
    }


def opaque(
    url: str,
    name: str = "charge",
    *,
    delay_s: float = 0.0,
    steps: tuple[str, ...] = (),
    **settings: Any,
) -> Function:
    return Function(name=name, function=ChargeFunction(url, name, delay_s, steps), **settings)


# -- all others


@dataclass(frozen=True, kw_only=True)
class HouseSink(Watched, Sink):
    url: str
    delay_s: float = 0.0
    steps: tuple[str, ...] = ()


@dataclass(eq=False)
class HouseSession:
    """One connection of one attempt."""

    sink: HouseSink
    target: Target
    charge_client: ChargeClient

    @classmethod
    def open(cls, sink: HouseSink, target: Target) -> Any:
        sink.reach("session.open")
        return cls(sink, target, ChargeClient(sink.url))

    def close(self) -> None:
        self.charge_client.close()

    def effect(self, path: str, **body: Any) -> Any:
        self.sink.reach("effect.before")
        time.sleep(self.sink.delay_s)
        answer = self.ask(path, **body)
        self.sink.reach("effect.after")
        return answer

    def ask(self, path: str, **body: Any) -> Any:
        target = self.target
        return self.charge_client.ask(
            path,
            {
                "pipeline": target.pipeline,
                "sink": target.sink,
                "partition": target.partition,
                "minibatch": [target.minibatch.generation, target.minibatch.batch],
                "attempt": [target.attempt.run, target.attempt.task],
                "pid": os.getpid(),
                **body,
            },
        )


def charges_in(chunk: Chunk) -> list[Body]:
    return [
        {
            **charge_of(event),
            "scope": chunk.rows.scope(place),
            "sort_key": chunk.rows.sort_key(place),
        }
        for place, event in enumerate(chunk.events())
    ]


def in_parts(charges: list[Body], send: Callable[[list[Body]], Any]) -> Receipt:
    """Send event by event; once one has arrived, a failure is unknown of the whole."""
    for place, charge in enumerate(charges):
        try:
            send([charge])
        except NotDelivered as error:
            if place:
                raise OutcomeUnknown("a part of it was sent") from error
            raise
    return DELIVERED


@dataclass(frozen=True, kw_only=True)
class RepeatableCharge(HouseSink):
    """Absorbs a repeat: by the event's key event by event, or by the chunk's as a whole."""

    @property
    def capability(self) -> Capability:
        return Capability.REPEATABLE

    def open(self, target: Target) -> Any:
        return RepeatableSession.open(self, target)


class RepeatableSession(HouseSession):
    def deliver(self, chunk: Chunk) -> Receipt:
        charges = charges_in(chunk)
        if self.sink.keyed_by_event:
            return in_parts(charges, lambda part: self.effect("/absorb", charges=part))
        self.effect("/absorb", key=chunk.key, charges=charges)
        return DELIVERED


@dataclass(frozen=True, kw_only=True)
class ProbingCharge(HouseSink):
    """Reports whether a chunk arrived."""

    @property
    def capability(self) -> Capability:
        return Capability.PROBING

    def open(self, target: Target) -> Any:
        return ProbingChargeSession.open(self, target)


class ProbingChargeSession(HouseSession):
    def deliver(self, chunk: Chunk) -> Receipt:
        self.effect("/chunk", key=chunk.key, charges=charges_in(chunk))
        return DELIVERED

    def arrived(self, key: str) -> bool:
        return bool(self.ask("/arrived", key=key))


@dataclass(frozen=True, kw_only=True)
class TransactionalCharge(HouseSink):
    """Moves a progress row and charges, as one."""

    @property
    def capability(self) -> Capability:
        return Capability.TRANSACTIONAL

    def open(self, target: Target) -> Any:
        return TransactionalChargeSession.open(self, target)


class TransactionalChargeSession(HouseSession):
    def take_over(self) -> Progress | None:
        stood = self.ask("/row/take")
        return None if stood is None else Progress.from_json(stood)

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        self.effect(
            "/row/deliver",
            charges=charges_in(chunk),
            progress=progress.to_json(),
            after=progress.after,
        )
        return DELIVERED


@dataclass(frozen=True, kw_only=True)
class SequencedCharge(HouseSink):
    """A log for each partition; with `in_parts` a chunk arrives event by event."""

    in_parts: bool = False
    last_opener_wins: bool = False

    @property
    def capability(self) -> Capability:
        return Capability.SEQUENCED

    def open(self, target: Target) -> Any:
        return SequencedChargeSession.open(self, target)


class SequencedChargeSession(HouseSession):
    epoch: int | None = None

    @classmethod
    def open(cls, sink: HouseSink, target: Target) -> Any:
        session = super().open(sink, target)
        if sink.last_opener_wins:
            session.epoch = session.ask("/log/open")
        return session

    def take_over(self) -> Tail:
        tail = self.ask("/log/take", epoch=self.epoch)
        return Tail(
            osn=tail["osn"],
            minibatch=Minibatch(*tail["minibatch"]) if tail["minibatch"] else None,
            sort_key=tail["sort_key"],
            stamp=Progress.from_json(tail["stamp"]) if tail["stamp"] else None,
            resent=tail["resent"],
        )

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        return self._append(chunk, progress, 0)

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        return self._append(chunk, None, number)

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        found: dict[str, list[Any]] = {}
        for scope, event in self.ask("/log/ids", minibatch=[minibatch.generation, minibatch.batch]):
            found.setdefault(scope, []).append(tuple(event) if isinstance(event, list) else event)
        return EntityIds.of({scope: IdSet.of(ids) for scope, ids in found.items()})

    def _append(self, chunk: Chunk, progress: Progress | None, resend: int) -> Receipt:
        charges = charges_in(chunk)
        stamp = None if progress is None else progress.to_json()

        def append(part: list[Body]) -> None:
            last = part[-1] is charges[-1]
            self.effect(
                "/log/append",
                charges=part,
                progress=stamp if last else None,
                resend=resend,
                epoch=self.epoch,
            )

        if getattr(self.sink, "in_parts", False):
            return in_parts(charges, append)
        append(charges)
        return DELIVERED


SINKS: dict[Capability, Callable[..., Sink]] = {
    Capability.OPAQUE: opaque,
    Capability.REPEATABLE: RepeatableCharge,
    Capability.PROBING: ProbingCharge,
    Capability.TRANSACTIONAL: TransactionalCharge,
    Capability.SEQUENCED: SequencedCharge,
}


def make_sink(capability: str, url: str, name: str = "charge", **settings: Any) -> Sink:
    """Make the sink of a capability at the charge server `url`; settings come as JSON has them."""
    if "on_doubt" in settings:
        settings["on_doubt"] = OnDoubt(settings["on_doubt"])
    if "retry" in settings:
        settings["retry"] = Retry(*settings["retry"])
    return SINKS[Capability(capability)](url=url, name=name, **settings)
