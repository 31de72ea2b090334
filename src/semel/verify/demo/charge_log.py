"""The log of the charge server: every charge, and the rules of each capability for repeats.

Always true:
- a request is answered completely before the next one is read;
- a charge is never forgotten and never undone;
- a fault is planned from outside, and used up by the request that it happens to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from semel.errors import Diverged
from semel.events import Attempt, Minibatch
from semel.events.encoding import json_value
from semel.runtime import SystemClock
from semel.sinks import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.runtime import Clock

Answer = tuple[HTTPStatus, Any]
Place = tuple[str, str, str]


class Trouble(StrEnum):
    """The faults of a request."""

    AWAY = "away"  # 503, nothing is charged
    REJECT = "reject"  # 422, nothing is charged, and nothing ever will be
    ERROR = "error"  # charged, then 500
    LOST = "lost"  # charged, then the connection ends without an answer
    DROPPED = "dropped"  # nothing is charged, and the connection ends without an answer
    SLOW = "slow"  # charged, and answered after `seconds`
    LATE = "late"  # charged after `seconds`, even if the caller is gone


@dataclass
class ChargeFault:
    """A planned trouble for requests with a matching event; None matches any.

    Attributes:
        times: how many requests it happens to; None for all.
        after: how many matching requests pass first.
    """

    trouble: Trouble
    event: Any = None
    entity: str | None = None
    sink: str | None = None
    seconds: float = 0.0
    times: int | None = 1
    after: int = 0

    def fits(self, body: dict[str, Any]) -> list[int]:
        """Return the positions of the matching charges in a request."""
        if self.sink is not None and body.get("sink") != self.sink:
            return []
        return [
            place
            for place, charge in enumerate(body["charges"])
            if self.event in (None, charge["event"]) and self.entity in (None, charge["entity"])
        ]


@dataclass
class Token:
    """A word that is returned to `times` requests, after `after` requests that get none."""

    word: str = "kill"
    times: int = 1
    after: int = 0


@dataclass
class PartitionLog:
    """The log of one partition: its writer's epoch and its entries."""

    epoch: Any = None
    entries: list[dict[str, Any]] = field(default_factory=list)

    def live(self) -> list[dict[str, Any]]:
        """Return the entries that are not resends."""
        return [entry for entry in self.entries if not entry["resend"]]

    @property
    def osn(self) -> int:
        """The highest OSN, 0 if there is none."""
        return max((entry["osn"] for entry in self.live()), default=0)


class RequestRefused(Exception):
    """The request is answered with an error status."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why


class ChargeLog:
    """All requests to the charge server, and the rules by which it answers."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.charges: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.faults: list[ChargeFault] = []
        self.tokens: dict[str, list[Token]] = {}
        self.asked: Counter[str] = Counter()
        self.taken: list[dict[str, Any]] = []
        self._keys: set[str] = set()
        self._chunks: set[str] = set()
        self._rows: dict[Place, Progress] = {}
        self._logs: dict[Place, PartitionLog] = {}
        self._opened = 0
        self._effects: dict[str, Callable[[dict[str, Any]], Any]] = {
            "/charge": self._charge,
            "/absorb": self._absorb,
            "/chunk": self._chunk,
            "/row/deliver": self._deliver_with_row,
            "/log/append": self._append,
        }
        self._questions: dict[str, Callable[[dict[str, Any]], Any]] = {
            "/arrived": lambda body: body["key"] in self._chunks,
            "/row/take": self._take_row,
            "/log/open": self._open_log,
            "/log/take": self._take_log,
            "/log/ids": self._logged_ids,
            "/plan": self._plan,
            "/arm": self._arm,
            "/charges": lambda _: self.charges,
            "/calls": lambda _: self.calls,
            "/tokens": lambda _: {"asked": self.asked, "taken": self.taken},
            "/token": self._token,
        }

    def trouble(self, path: str, body: dict[str, Any]) -> ChargeFault | None:
        """Return the fault of this request, and use it up."""
        if path not in self._effects:
            return None
        for fault in self.faults:
            if fault.times == 0 or not fault.fits(body):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            if fault.times is not None:
                fault.times -= 1
            return fault
        return None

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        """Carry out a request; return its answer."""
        effect = self._effects.get(path)
        question = effect or self._questions.get(path)
        if question is None:
            return HTTPStatus.NOT_FOUND, f"there is no {path}"
        before = len(self.charges)
        try:
            answer: Answer = HTTPStatus.OK, question(body)
        except RequestRefused as refused:
            answer = refused.status, refused.why
        if effect is not None:
            self.calls.append(
                {
                    "path": path,
                    "at": self._clock.wall(),
                    "events": len(body["charges"]),
                    "effects": len(self.charges) - before,
                    **{name: body.get(name) for name in ("sink", "partition", "attempt", "pid")},
                    "status": answer[0],
                }
            )
        return answer

    # -- charges

    def _charge(self, body: dict[str, Any]) -> Any:
        """OPAQUE: charge, regardless of earlier charges."""
        for charge in body["charges"]:
            self._write(body, charge)

    def _absorb(self, body: dict[str, Any]) -> Any:
        """REPEATABLE: charge events with a new key, that of the chunk or of each event."""
        key = body.get("key")
        known = [(key or charge["key"]) in self._keys for charge in body["charges"]]
        for charge, repeated in zip(body["charges"], known, strict=True):
            self._keys.add(key or charge["key"])
            if not repeated:
                self._write(body, charge)
        return {"repeats": sum(known)}

    def _chunk(self, body: dict[str, Any]) -> Any:
        """PROBING: charge, and remember that this chunk arrived."""
        self._chunks.add(body["key"])
        self._charge(body)

    def _deliver_with_row(self, body: dict[str, Any]) -> Any:
        """TRANSACTIONAL: check the row, advance it and charge, atomically."""
        progress, stood = Progress.from_json(body["progress"]), self._rows.get(_place(body))
        progress = replace(progress, after=body["after"])
        same = stood is not None and stood.minibatch == progress.minibatch
        if stood is not None and same and stood.done > progress.start:
            raise RequestRefused(HTTPStatus.CONFLICT, f"the row stands at {stood.done} already")
        _refuse_late(stood, body)
        try:
            progress.require_kept(stood, "/".join(_place(body)))
        except Diverged as lost:
            raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, str(lost)) from None
        if stood is not None and same:
            progress = replace(progress, ids=stood.ids | progress.ids)
        self._rows[_place(body)] = progress
        self._charge(body)

    def _append(self, body: dict[str, Any]) -> Any:
        """SEQUENCED: append events beyond the end of the log; a resend has its own number."""
        log = self._log(body)
        _refuse_replaced(log, body)
        if not body["resend"] and body["charges"][0]["osn"] <= log.osn:
            raise RequestRefused(HTTPStatus.CONFLICT, f"the log stands at {log.osn} already")
        for charge in body["charges"]:
            self._write(body, charge)
            entry = {**charge, "minibatch": body["minibatch"], "resend": body["resend"]}
            log.entries.append({**entry, "stamp": None})
        log.entries[-1]["stamp"] = body["progress"]

    def _write(self, body: dict[str, Any], charge: dict[str, Any]) -> None:
        origin = ("pipeline", "sink", "partition", "minibatch", "attempt", "pid")
        self.charges.append(
            {
                "number": len(self.charges) + 1,
                "at": self._clock.wall(),
                **{name: body.get(name) for name in origin},
                **{name: charge.get(name) for name in ("entity", "event", "osn", "amount", "key")},
            }
        )

    # -- take-over and queries

    def _take_row(self, body: dict[str, Any]) -> Any:
        stood = self._rows.get(_place(body))
        _refuse_late(stood, body)
        minibatch, attempt = Minibatch(*body["minibatch"]), Attempt(*body["attempt"])
        row = stood or Progress(minibatch, attempt)
        self._rows[_place(body)] = row.taken_by(minibatch, attempt)
        return None if stood is None else stood.to_json()

    def _open_log(self, body: dict[str, Any]) -> Any:
        """Assign the log to the last opener."""
        self._opened += 1
        self._log(body).epoch = self._opened
        return self._opened

    def _take_log(self, body: dict[str, Any]) -> Any:
        log = self._log(body)
        _refuse_replaced(log, body)
        if body.get("epoch") is None:
            log.epoch = body["attempt"]
        live = log.live()
        last = max(live, key=lambda entry: int(entry["osn"]), default=None)
        stamps = [entry["stamp"] for entry in live if entry["stamp"] is not None]
        return {
            "osn": log.osn,
            "minibatch": last and last["minibatch"],
            "sort_key": last and last["sort_key"],
            "stamp": stamps[-1] if stamps else None,
            "resent": max((entry["resend"] for entry in log.entries), default=0),
        }

    def _logged_ids(self, body: dict[str, Any]) -> Any:
        return [
            [entry["scope"], entry["event"]]
            for entry in self._log(body).entries
            if entry["minibatch"] == body["minibatch"]
        ]

    def _log(self, body: dict[str, Any]) -> PartitionLog:
        return self._logs.setdefault(_place(body), PartitionLog())

    # -- faults and tokens

    def _plan(self, body: dict[str, Any]) -> Any:
        self.faults.append(ChargeFault(**{**body, "trouble": Trouble(body["trouble"])}))

    def _arm(self, body: dict[str, Any]) -> Any:
        fields = dict(body)
        self.tokens.setdefault(fields.pop("name"), []).append(Token(**fields))

    def _token(self, body: dict[str, Any]) -> Any:
        """Return the word of an armed token, exactly as often as it was armed for."""
        name = body["name"]
        self.asked[name] += 1
        for token in self.tokens.get(name, []):
            if token.times <= 0:
                continue
            if token.after > 0:
                token.after -= 1
                continue
            token.times -= 1
            self.taken.append(
                {
                    "name": name,
                    "word": token.word,
                    "pid": body.get("pid"),
                    "at": self._clock.wall(),
                }
            )
            return token.word
        return None


def refusal(fault: ChargeFault, body: dict[str, Any]) -> Answer:
    """Return the answer that names the refused charges of a request."""
    return HTTPStatus.UNPROCESSABLE_ENTITY, {"refused": fault.fits(body)}


def dump(value: Any) -> bytes:
    """Return an answer as JSON."""
    return json_value(value).encode()


def _place(body: dict[str, Any]) -> Place:
    return body["pipeline"], body["sink"], body["partition"]


def _refuse_late(stood: Progress | None, body: dict[str, Any]) -> None:
    """Refuse an attempt or a minibatch that is older than the one in the row."""
    if stood is None:
        return
    late = stood.attempt > Attempt(*body["attempt"])
    if late or stood.minibatch > Minibatch(*body["minibatch"]):
        raise RequestRefused(HTTPStatus.CONFLICT, f"the row names attempt {stood.attempt}")


def _refuse_replaced(log: PartitionLog, body: dict[str, Any]) -> None:
    """Refuse a writer that was replaced: by a later attempt, or by a later opener."""
    epoch = body.get("epoch")
    if epoch is not None:
        replaced = log.epoch != epoch
    else:
        replaced = log.epoch is not None and log.epoch > body["attempt"]
    if replaced:
        raise RequestRefused(HTTPStatus.CONFLICT, f"the log's epoch is {log.epoch}")
