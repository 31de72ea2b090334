"""Explains what a pipeline guarantees and what it costs."""

from semel.guarantees.costs import Cost, Load, commits_of_partition, cost
from semel.guarantees.explain import Explanation, IdentityPromise, SinkPromise, explain

__all__ = [
    "Cost",
    "Explanation",
    "IdentityPromise",
    "Load",
    "SinkPromise",
    "commits_of_partition",
    "cost",
    "explain",
]
