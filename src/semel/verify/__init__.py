"""Whether it is true: the real protocol in simulated worlds, with every fault we can think of."""

from semel.verify.cases import Case, Variant
from semel.verify.checker import Category, Evidence, Judgement, Verdict, Violation, judge
from semel.verify.explore import Explored, explore
from semel.verify.worlds import Outcome, Summary, run_world, run_worlds

__all__ = [
    "Case",
    "Category",
    "Evidence",
    "Explored",
    "Judgement",
    "Outcome",
    "Summary",
    "Variant",
    "Verdict",
    "Violation",
    "explore",
    "judge",
    "run_world",
    "run_worlds",
]
