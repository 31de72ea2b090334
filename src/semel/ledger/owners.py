"""Who runs a pipeline: registration, what may not change under a name, and the heartbeat.

Always true:
- run numbers of a pipeline only grow, and every `start()` gets its own;
- a name whose beat moves belongs to a living run: nobody else registers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, Fenced
from semel.ledger import payloads
from semel.ledger.keys import key
from semel.ledger.processes import Process
from semel.ledger.store import Absent, Conflict, Equals, Put

if TYPE_CHECKING:
    from semel.ledger.scribe import Scribe
    from semel.ledger.store import Requirement, Update

PIPELINES = "pipelines"
OWNERS = "owners"

LOOKS = 20
"""How often a lease is cut to see whether the owner is gone: nobody waits longer than needed."""
FINISHED = "finished"
"""The field in the row of a batch job that says what it delivered, once it is finished."""


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The run that has a pipeline. `nonce` tells a start from any other; `ended` when it stopped by
    itself.
    """

    run: int
    nonce: str
    process: Process
    beat: int
    at: float
    ended: bool = False

    def dump(self) -> str:
        """Give the payload."""
        return payloads.dump(
            {
                "run": self.run,
                "nonce": self.nonce,
                "process": self.process.to_json(),
                "beat": self.beat,
                "at": self.at,
                "ended": self.ended,
            }
        )

    @classmethod
    def load(cls, text: str) -> OwnerRow:
        """Read it back."""
        row = payloads.load(text)
        return cls(
            row["run"],
            row["nonce"],
            Process.from_json(row["process"]),
            row["beat"],
            row["at"],
            row["ended"],
        )


class Owners:
    """Registers runs of one pipeline and keeps their heartbeat. Runs on the driver."""

    def __init__(self, scribe: Scribe) -> None:
        self._scribe = scribe
        self._pipeline = key(PIPELINES, scribe.pipeline)
        self._owner = key(OWNERS, scribe.pipeline)

    def owner(self) -> OwnerRow | None:
        """Tell who has the pipeline."""
        text = self._scribe.read_one(self._owner)
        return None if text is None else OwnerRow.load(text)

    def described(self) -> dict[str, Any] | None:
        """Give what is recorded of the pipeline; None when it never ran."""
        text = self._scribe.read_one(self._pipeline)
        return None if text is None else payloads.load(text)

    def alive(self, me: Process, lease_s: float) -> bool:
        """Watch for one lease whether the owner's beat moves; a process known to be gone needs no
        watching.
        """
        before = self.owner()
        if before is None or before.process == me:
            return False
        for _ in range(LOOKS):
            owner = self.owner()
            if owner is None or owner.ended or owner.process.gone():
                return False
            if owner != before:
                return True
            self._scribe.clock.sleep(lease_s / LOOKS)
        return self.owner() not in (None, before)

    def register(self, description: dict[str, Any], me: Process, nonce: str) -> int:
        """Begin a run: give its number. May be repeated with the same `nonce` after a lost reply.

        Raises `ConfigurationError` when the name was used with another identity, sink or rule.
        """
        while True:
            rows = self._scribe.read(self._pipeline, self._owner)
            text = rows.get(self._owner)
            owner = None if text is None else OwnerRow.load(text)
            if owner is not None and owner.nonce == nonce:
                return owner.run
            requirements, updates = self._described(rows.get(self._pipeline), description)
            run = 1 if owner is None else owner.run + 1
            row = OwnerRow(run, nonce, me, 0, self._scribe.clock.wall())
            requirements.append(Absent(self._owner) if text is None else Equals(self._owner, text))
            updates.append(Put(self._owner, row.dump()))
            try:
                self._scribe.commit(requirements, updates)
            except Conflict:
                continue
            return run

    def refuse_changed(self, description: dict[str, Any]) -> None:
        """Raise `ConfigurationError` where `register` would, and write nothing."""
        self._described(self._scribe.read_one(self._pipeline), description)

    def beat(self, run: int, nonce: str, *, ended: bool = False) -> None:
        """Say that the run lives, or that it has ended. Raises `Fenced` when a later run has the
        name.
        """
        while True:
            text = self._scribe.read_one(self._owner)
            owner = None if text is None else OwnerRow.load(text)
            if text is None or owner is None or owner.nonce != nonce:
                raise Fenced(
                    f"pipeline {self._scribe.pipeline!r}: run {run} was replaced by run "
                    f"{owner.run if owner else '?'}; it stops. Start it again only where the other "
                    "one ended"
                )
            if owner.ended:
                return
            row = OwnerRow(
                run, nonce, owner.process, owner.beat + 1, self._scribe.clock.wall(), ended
            )
            try:
                self._scribe.commit([Equals(self._owner, text)], [Put(self._owner, row.dump())])
            except Conflict:
                continue
            return

    def _described(
        self, recorded: str | None, description: dict[str, Any]
    ) -> tuple[list[Requirement], list[Update]]:
        """Compare what may not change with what is recorded; record a further sink."""
        text = payloads.dump(description)
        if recorded is None:
            return [Absent(self._pipeline)], [Put(self._pipeline, text)]
        before = payloads.load(recorded)
        had, asked = before.get("partitions"), description.get("partitions")
        rescaled = None not in (had, asked) and had != asked
        aside = {"sinks", FINISHED} | ({"partitions"} if rescaled else set())
        changed = [
            f"{name} was {before[name]!r} and is {description.get(name)!r}"
            for name in before
            if name not in aside and description.get(name) != before[name]
        ]
        known: dict[str, Any] = before.get("sinks", {})
        wanted: dict[str, Any] = description.get("sinks", {})
        changed += [
            f"sink {name!r} was {known[name]!r} and is {wanted[name]!r}"
            for name in sorted(known.keys() & wanted.keys())
            if known[name] != wanted[name]
        ]
        if changed:
            raise ConfigurationError(
                f"pipeline {self._scribe.pipeline!r}: {'; '.join(changed)}. What was delivered "
                "under this name cannot be told from what was not any more: give the changed "
                "pipeline a new name"
            )
        if rescaled:
            raise ConfigurationError(
                f"pipeline {self._scribe.pipeline!r} has {had} partitions, and partitions={asked} "
                "is asked for. While it is stopped, say `semel rescale "
                f"{self._scribe.pipeline} {asked}`; or start it with {had}"
            )
        merged = payloads.dump({**before, **description, "sinks": {**known, **wanted}})
        if merged == recorded:
            return [], []
        return [Equals(self._pipeline, recorded)], [Put(self._pipeline, merged)]
