"""What the log says at the end of a minibatch: what was not sent, and why."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.spark.task import Outcome

log = logging.getLogger("semel")

_TEXTS = {
    "skipped": "not sent, because handled (delivered, parked or dropped) {before}",
    "suppressed": "not sent again, because delivered by an attempt before",
    "parked_before": "not sent again and not delivered, because parked by an attempt before "
    "(`semel parked ls` shows them)",
    "dropped_before": "not sent again, because dropped in doubt by an attempt before "
    "(on_doubt='skip')",
    "doubted": "parked in doubt (`semel parked ls` shows them)",
    "others": "parked for another reason, or behind one that is (`semel parked ls`)",
    "dropped": "in doubt and dropped (on_doubt='skip'): they may not have arrived",
}


def tell(place: str, outcome: Outcome, *, judged: bool = False) -> None:
    """Warn of events that were not sent because they had been, and of those that wait."""
    told: Counter[str] = Counter(skipped=outcome.skipped)
    for report in outcome.reports:
        for name in ("skipped", "suppressed", "parked_before", "dropped_before", "dropped"):
            told[name] += getattr(report, name)
        told["doubted"] += report.doubted
        told["others"] += report.parked - report.doubted
    before = "before a person judged" if judged else "before the checkpoint was lost"
    for name, text in _TEXTS.items():
        if told[name]:
            log.warning("%s: events %s: %d", place, text.format(before=before), told[name])
