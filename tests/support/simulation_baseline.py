"""What became of some simulated worlds, without a word that a person reads or a module is named by.

`python -m support.simulation_baseline`, run in `tests`, writes `simulation/baseline.json` with the
code at hand.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from semel.verify.simulator.destinations import RecordedEffect
from semel.verify.simulator.worlds import SimulatedWorld, world_seed

FILE = Path(__file__).parents[1] / "simulation" / "baseline.json"
SEED = 7
WORLDS = 60

LEFT_OUT = ("why", "by", "reason", "trace", "schema", "types", "judged", "absorbed_by")
"""Of a row: sentences, places in the code, what depends on the version of Arrow, new fields."""


def digest(what: Any) -> str:
    text = json.dumps(what, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def played(seed: int) -> dict[str, Any]:
    """Play a world, and give what came of it: the verdict, counts, and digests.

    `got` is what each destination received, in order; `ledger` the rows that were left.
    """
    world = SimulatedWorld(seed)
    assessment = world.run()
    rows = [
        [*at, {name: each for name, each in json.loads(text).items() if name not in LEFT_OUT}]
        for at, text in world.cluster.store.rows().items()
    ]
    return {
        "case": f"{world.case.capability.value} {world.case.identities.value}",
        "verdict": assessment.verdict.value,
        "counts": {each.value: times for each, times in sorted(assessment.counts.items())},
        "violations": len(assessment.violations),
        "doubted": assessment.doubted,
        "unreported": assessment.unreported,
        "faults": world.fault_plan.struck,
        "turns": world.hub.turns,
        "got": {
            name: digest([_plain(effect) for effect in destination.seen()])
            for name, destination in world.cluster.destinations.items()
        },
        "ledger": digest(rows),
    }


def _plain(effect: RecordedEffect) -> list[Any]:
    minibatch, attempt = effect.minibatch, effect.attempt
    return [
        effect.number,
        effect.entity,
        effect.event,
        effect.osn,
        [minibatch.generation, minibatch.batch],
        [attempt.run, attempt.task],
        effect.partition,
        effect.at,
        effect.late,
        effect.resend,
    ]


def seeds() -> list[int]:
    return [world_seed(SEED, at) for at in range(WORLDS)]


def main() -> None:
    logging.getLogger("semel").disabled = True
    lines = [f"  {json.dumps(str(seed))}: {json.dumps(played(seed))}" for seed in seeds()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
