"""Explains what a pipeline guarantees and what it costs."""

from semel.guarantees.costs import Cost, Load, cost
from semel.guarantees.explain import Explanation, IdentityPromise, SinkPromise, explain

__all__ = [
    "Cost",
    "Explanation",
    "IdentityPromise",
    "Load",
    "SinkPromise",
    "cost",
    "explain",
]
