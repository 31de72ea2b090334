"""Looks at the plan of a frame: its sources, and whether their own columns come through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

MAP_AND_FILTER = frozenset({"Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "View"})
"""What neither moves a row to another partition nor makes several of one."""


def is_classic(frame: DataFrame) -> bool:
    """Whether the frame lives in this process's own Spark session, not behind Spark Connect."""
    return hasattr(frame, "_jdf")


def keeps_positions(frame: DataFrame, names: Sequence[str]) -> bool:
    """Whether the plan is only map and filter over one source, and `names` are that source's own
    columns; False also where nobody can look (Spark Connect).
    """
    if not is_classic(frame):
        return False
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - the plan has no other door
    given = {name: expression for name, expression in _output(plan) if name in names}
    while (children := list(_each(plan.children()))) != []:
        if plan.nodeName() not in MAP_AND_FILTER or len(children) != 1:
            return False
        plan = children[0]
    of_source = dict(_output(plan))
    return set(given) == set(names) and all(
        of_source.get(name) == expression for name, expression in given.items()
    )


def streams(frame: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """The format and the options of each streaming source; "" for one that cannot be looked at."""
    if is_classic(frame):
        analyzed: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
        leaves = [leaf for leaf in _each(analyzed.collectLeaves()) if leaf.isStreaming()]
        return [
            (str(leaf.sourceName()), dict(leaf.extraOptions().asCaseSensitiveMap()))
            if leaf.nodeName() == "StreamingRelationV2"
            else ("", {})
            for leaf in leaves
        ]
    return list(_unresolved(frame._plan))  # noqa: SLF001 - as above


def _unresolved(plan: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """The same of a plan of Spark Connect, which names what it reads and knows no more."""
    from pyspark.sql.connect.plan import LogicalPlan

    if getattr(plan, "_is_streaming", False):
        yield getattr(plan, "_format", None) or "", dict(getattr(plan, "_options", None) or {})
    for value in vars(plan).values():
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, LogicalPlan):
                yield from _unresolved(child)


def _output(plan: Any) -> Iterator[tuple[str, str]]:
    """The columns of a plan: their names, and Spark's own ids of them."""
    for attribute in _each(plan.output()):
        yield attribute.name(), str(attribute.exprId().toString())


def _each(sequence: Any) -> Iterator[Any]:
    """The members of a Scala sequence."""
    for place in range(sequence.size()):
        yield sequence.apply(place)
