"""The sections of a pipeline file other than its sinks, as pydantic models.

Always true: a key of a section is a field here, with its description; the JSON Schema and the
reference in the docs are made of these models.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from semel.pipeline import kinds
from semel.streams import APPLICATIONS

NO_SOURCE = "the file needs either [source] or [sources.NAME]"


def _missing(text: str) -> PydanticCustomError:
    return PydanticCustomError("missing_one", "{text}", {"text": text})


class Section(BaseModel):
    """A table of the file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PartitionBy(Section):
    """How entities are spread over partitions, instead of by their hash."""

    range: kinds.Bounds | None = Field(
        None, description="Bounds: `[1000, 2000]` makes three partitions."
    )
    directory: kinds.Directory | None = Field(
        None, description="A table of entities and partition numbers, or `module:function`."
    )
    default: kinds.Integer | None = Field(
        None, description="The partition of entities that the table does not have."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.range is None) == (self.directory is None):
            raise _missing("partition_by needs either range or directory")
        return self


class PipelineSection(Section):
    """`[pipeline]`: the name, where progress is kept, and what is required."""

    name: kinds.Text = Field(description="The name in the ledger; only `semel rename` changes it.")
    checkpoint: kinds.Text = Field(description="The folder of Spark's checkpoint.")
    ledger: kinds.Text | None = Field(
        None,
        description="`sqlite:///charges.db` or `postgresql://...`; by default `$SEMEL_LEDGER`, "
        "otherwise a file beside the checkpoint.",
    )
    application: kinds.one_of(tuple(APPLICATIONS)) | None = Field(  # type: ignore[valid-type]
        None, description="The type of application: how soon events must be delivered."
    )
    latency: kinds.Duration | None = Field(
        None,
        description='The latency that is required, for example `"5s"`, if it is not the default '
        "of the application.",
    )
    partitions: kinds.Count | None = Field(
        None, description="Over how many partitions entities are spread; fixed at the first start."
    )
    partition_by: PartitionBy | None = Field(
        None, description="How entities are spread over them: a table with `range` or `directory`."
    )
    order: kinds.Flag = Field(
        True, description="Whether the events of an entity wait for each other."
    )
    remember: kinds.Duration | None = Field(
        None, description='How long ids that do not rise are remembered; by default `"7d"`.'
    )
    accept_gap: kinds.Flag = Field(
        False, description="Continue even if the input does not start where the ledger ends."
    )
    metrics: kinds.Address | None = Field(
        None,
        description="Where Prometheus reads metrics: a port of 127.0.0.1, or an address such as "
        '`"0.0.0.0:9108"`.',
    )
    otel: kinds.Flag = Field(
        False,
        description="Give a trace for each minibatch, and the metrics, to the SDK of "
        "OpenTelemetry that the process has set up.",
    )
    alert: kinds.Text | None = Field(
        None,
        description="A URL that gets a POST, or `module:function`, when events were parked.",
    )
    audit: kinds.Text | None = Field(
        None,
        description="A folder, or its URL, for Parquet files by day with the outcome of every "
        "event, which outlive what the ledger keeps.",
    )
    drop_repeats: kinds.Flag = Field(
        False,
        description="Drop events whose ids came in an earlier minibatch, as far as the ledger "
        "remembers them.",
    )
    mode: kinds.one_of(("append", "update", "complete")) = Field(  # type: ignore[valid-type]
        "append", description="Spark's output mode."
    )

    @model_validator(mode="after")
    def _both(self) -> Self:
        if self.latency is not None and self.application is None:
            raise _missing(f"latency needs application: {', '.join(APPLICATIONS)}")
        return self


class SourceSection(Section):
    """`[source]` or `[sources.NAME]`: what is read; in SQL it has the name `source` or NAME."""

    format: kinds.Text = Field(
        description="A format of Spark (`json`, `kafka`, `rate`, ...), or `module:Class` for a "
        "Python data source."
    )
    schema_: kinds.Text | None = Field(
        None, alias="schema", description="The columns, as SQL writes them."
    )
    options: kinds.Options = Field(
        default_factory=dict, description="Options of the format, by name."
    )
    static: kinds.Flag = Field(
        False, description="Read it once for each query, not as a stream: a table to join with."
    )


class TransformSection(Section):
    """`[transform]`: from sources to the rows that are delivered; by default the source itself."""

    sql: kinds.Statements | None = Field(
        None,
        description="A statement, or a list of them; the rows of the last one are delivered.",
    )
    views: kinds.TextTable = Field(
        default_factory=dict, description="Statements by name, to be used in `sql`, in their order."
    )
    python: kinds.Reference | None = Field(
        None,
        description="`module:function`, called with the DataFrame of `[source]`, or with those of "
        "`[sources]` by name; it returns a DataFrame.",
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.sql is None) == (self.python is None):
            raise _missing("transform needs either sql or python")
        if self.views and self.sql is None:
            raise _missing("views belong to sql, and there is none")
        return self


class IdentitySection(Section):
    """`[identity]`: when a row is the same event as one that was read before."""

    entity: kinds.Text | None = Field(
        None, description="The column that groups events; an entity's events stay in order."
    )
    event: kinds.TextOrTexts | None = Field(
        None, description="The column or columns that identify an event of its entity."
    )
    identity: kinds.one_of(("position", "given", "counter")) | None = Field(  # type: ignore[valid-type]
        None, description="The kind of identity, if the other keys do not imply it."
    )
    order_by: kinds.TextOrTexts | None = Field(
        None, description="The columns that order an entity's events, if ids do not rise."
    )
    increasing: kinds.Flag = Field(False, description="The ids of an entity only rise.")


class SparkSection(Section):
    """`[spark]`: the session, where `semel run` starts one."""

    master: kinds.Text | None = Field(
        None, description="Spark's master; by default `local[2,4]`. Not used under spark-submit."
    )
    log_level: kinds.one_of(("ALL", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")) = Field(  # type: ignore[valid-type]
        "ERROR", description="The level of Spark's own log."
    )
    settings: kinds.Options = Field(
        default_factory=dict,
        description='Settings of Spark, by name: `"spark.jars.packages" = "..."`.',
    )


class TriggerSection(Section):
    """`[trigger]`: when a micro-batch begins."""

    every: kinds.Duration | None = Field(
        None,
        description="The shortest time between two micro-batches; by default the next one begins "
        "when there is input.",
    )


class FileSections(Section):
    """A pipeline file; its sinks are read one by one."""

    pipeline: PipelineSection = Field(description="The name, where progress is kept.")
    source: SourceSection | None = Field(None, description="What is read.")
    sources: dict[str, SourceSection] = Field(
        default_factory=dict, description="Several sources, each with a name."
    )
    transform: TransformSection | None = Field(None, description="SQL or Python.")
    identity: IdentitySection = Field(
        default_factory=lambda: IdentitySection.model_validate({}),
        description="When two rows are the same event.",
    )
    sinks: list[Any] = Field(description="Where events are delivered, one table for each.")
    spark: SparkSection = Field(
        default_factory=lambda: SparkSection.model_validate({}), description="The session."
    )
    trigger: TriggerSection = Field(
        default_factory=lambda: TriggerSection.model_validate({}),
        description="When a micro-batch begins.",
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.source is None) == (not self.sources):
            raise _missing(NO_SOURCE)
        if self.sources and self.transform is None:
            raise _missing("several sources need [transform], which makes one DataFrame of them")
        return self

    @property
    def named_sources(self) -> dict[str, SourceSection]:
        """The sources by name; the only one is called `source`."""
        return self.sources if self.source is None else {"source": self.source}
