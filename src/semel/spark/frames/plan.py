"""Reads the plan of a DataFrame: its sources, and what happens to their rows and columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

MAP_AND_FILTER = frozenset({"Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "View"})
"""The operators that neither move a row to another partition nor multiply it."""

MOVING = re.compile(
    r"(Exchange|CartesianProduct"
    r"|Repartition \d+, true|RepartitionByExpression|RebalancePartitions|Deduplicate|Aggregate)\b"
)
"""The operators that spread the rows of one task over several, as plans name them."""

SPLITTING = ("minpartitions", "maxrecordsperpartition")
"""The options with which Spark's Kafka source reads one partition in several tasks."""

_NODE = re.compile(r"^(?P<tree>[ :|+-]*)(?:\*\(\d+\) )?~?(?P<text>(?P<name>\w+).*)")
_SECTION = re.compile(r"^== (.*) ==$", re.MULTILINE)
_RELATIONS = frozenset({"StreamingRelation", "StreamingRelationV2"})
_KAFKA = "kafka"


def is_classic(frame: DataFrame) -> bool:
    """Whether the DataFrame belongs to a Spark session of this process, not to Spark Connect."""
    return hasattr(frame, "_jdf")


def keeps_positions(frame: DataFrame, names: Sequence[str]) -> bool:
    """Whether the plan is only map and filter over one source, and `names` are that source's own
    columns; False with Spark Connect, where the plan cannot be read.
    """
    if not is_classic(frame):
        return False
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - there is no public API for the plan
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
    """Return format and options of each streaming source; "" and {} if they cannot be read."""
    if is_classic(frame):
        analyzed: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
        leaves = [leaf for leaf in _each(analyzed.collectLeaves()) if leaf.isStreaming()]
        return [
            (str(leaf.sourceName()), dict(leaf.extraOptions().asCaseSensitiveMap()))
            if leaf.nodeName() == "StreamingRelationV2"
            else ("", _in_text(leaf))
            for leaf in leaves
        ]
    return list(_unresolved(frame._plan))  # noqa: SLF001 - as above


def _in_text(leaf: Any) -> dict[str, str]:
    """Return the options of an older kind of source, such as files, which is a Scala map."""
    if leaf.nodeName() != "StreamingRelation":
        return {}
    return dict(re.findall(r"(\w+) -> ([^,()]*)", str(leaf.dataSource().options().toString())))


@dataclass(frozen=True)
class Route:
    """What happens to rows between the sources and the DataFrame, as far as the plan shows.

    Attributes:
        sources: how many streaming sources are read.
        moving: the first operator that spreads the rows of one task over several; "" if none.
        splitting: options with which a source reads one partition in several tasks, `name=value`.
    """

    sources: int = 0
    moving: str = ""
    splitting: tuple[str, ...] = ()


def route(frame: DataFrame) -> Route:
    """Return how rows reach a DataFrame, also through a view that only Spark Connect knows."""
    _, *parts = _SECTION.split(_explained(frame))
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    analyzed, physical = (
        [found for line in sections.get(name, "").splitlines() if (found := _NODE.match(line))]
        for name in ("Analyzed Logical Plan", "Physical Plan")
    )
    # Spark makes a physical plan of SQL over a stream only when it starts.
    nodes = physical if _streams_in(physical) or not _streams_in(analyzed) else analyzed
    return Route(
        len(_streams_in(nodes)),
        next(filter(None, (_moved(nodes, at) for at in _leaves(nodes))), ""),
        tuple(sorted({*_splitting_options(_options(frame)), *_options_in_text(analyzed)})),
    )


def _explained(frame: DataFrame) -> str:
    """Return Spark's text of the analyzed and the physical plan."""
    if not is_classic(frame):
        remote: Any = frame
        return str(remote._explain_string(extended=True))  # noqa: SLF001 - explain() prints it
    plan: Any = frame._jdf.queryExecution()  # noqa: SLF001 - as above
    utils: Any = frame.sparkSession._jvm.PythonSQLUtils  # type: ignore[union-attr]  # noqa: SLF001
    return str(utils.explainString(plan, "extended"))


def _streams_in(nodes: list[re.Match[str]]) -> list[int]:
    return [at for at, node in enumerate(nodes) if node["name"] in _RELATIONS]


def _leaves(nodes: list[re.Match[str]]) -> list[int]:
    """Return the nodes that rows come from: each streaming source; in a batch job the last node, if
    the plan has no join.
    """
    streaming = _streams_in(nodes)
    depths = [len(node["tree"]) for node in nodes]
    is_chain = all(before < after for before, after in pairwise(depths))
    return streaming or ([len(nodes) - 1] if nodes and is_chain else [])


def _moved(nodes: list[re.Match[str]], at: int) -> str:
    """Return the first operator above a node that moves rows; "" if there is none."""
    depth = len(nodes[at]["tree"])
    found = ""
    for node in reversed(nodes[:at]):
        if len(node["tree"]) < depth:
            depth = len(node["tree"])
            found = found or (node["text"] if MOVING.match(node["text"]) else "")
    return found


def _splitting_options(options: Iterator[dict[str, str]]) -> Iterator[str]:
    for each in options:
        for name, value in each.items():
            if name.lower() in SPLITTING:
                yield f"{name}={value}"


def _options_in_text(nodes: list[re.Match[str]]) -> Iterator[str]:
    """Yield the same options from the text of a plan, for sources that show them nowhere else."""
    option = rf"[\[ ]((?:{'|'.join(SPLITTING)})=\d+)[,\]]"
    for at in _streams_in(nodes):
        if f", {_KAFKA}, " in nodes[at]["text"]:
            yield from re.findall(option, nodes[at]["text"], re.IGNORECASE)


def _options(frame: DataFrame) -> Iterator[dict[str, str]]:
    """Yield the options of each Kafka source that shows them, streaming or not."""
    if not is_classic(frame):
        found = _unresolved(frame._plan, batch=True)  # noqa: SLF001 - as above
        yield from (options for kind, options in found if kind.lower() == _KAFKA)
        return
    analyzed: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
    for leaf in _each(analyzed.collectLeaves()):
        if leaf.nodeName() == "StreamingRelationV2" and str(leaf.sourceName()).lower() == _KAFKA:
            yield dict(leaf.extraOptions().asCaseSensitiveMap())
        elif leaf.nodeName() == "DataSourceV2Relation" and _is_kafka(leaf.table()):
            yield dict(leaf.options().asCaseSensitiveMap())
        elif leaf.nodeName() == "LogicalRelation":
            yield _kept(leaf.relation())


def _kept(relation: Any) -> dict[str, str]:
    """Return the splitting options of a Kafka batch source, which keeps them private."""
    fields = {each.getName(): each for each in relation.getClass().getDeclaredFields()}
    if not _is_kafka(relation) or "sourceOptions" not in fields:
        return {}
    fields["sourceOptions"].setAccessible(True)
    options = fields["sourceOptions"].get(relation)
    found = {name: options.get(name) for name in SPLITTING}
    return {name: str(each.get()) for name, each in found.items() if each.isDefined()}


def _is_kafka(read: Any) -> bool:
    """Whether a batch reads Spark's Kafka source."""
    return "Kafka" in str(read.getClass().getName())


def _unresolved(plan: Any, *, batch: bool = False) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield format and options of the sources in a plan of Spark Connect."""
    from pyspark.sql.connect.plan import LogicalPlan

    if getattr(plan, "_is_streaming", False) or (batch and hasattr(plan, "_options")):
        yield getattr(plan, "_format", None) or "", dict(getattr(plan, "_options", None) or {})
    for value in vars(plan).values():
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, LogicalPlan):
                yield from _unresolved(child, batch=batch)


def _output(plan: Any) -> Iterator[tuple[str, str]]:
    """Yield the columns of a plan: their names and Spark's expression ids."""
    for attribute in _each(plan.output()):
        yield attribute.name(), str(attribute.exprId().toString())


def _each(sequence: Any) -> Iterator[Any]:
    """Yield the members of a Scala sequence."""
    for place in range(sequence.size()):
        yield sequence.apply(place)
