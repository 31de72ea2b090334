"""A pipeline from a file: read and checked, explained, and run."""

from semel.pipeline.build import Pipeline, build
from semel.pipeline.file import PipelineFile, read_file
from semel.pipeline.json_schema import json_schema
from semel.pipeline.problems import Mistake, WrongPipelineFile
from semel.pipeline.progress import Lines, RunProgress, RunStanding, Silent
from semel.pipeline.running import QueryFailed, RunEnd, exit_status, run
from semel.pipeline.starter import write_starter

__all__ = [
    "Lines",
    "Mistake",
    "Pipeline",
    "PipelineFile",
    "QueryFailed",
    "RunEnd",
    "RunProgress",
    "RunStanding",
    "Silent",
    "WrongPipelineFile",
    "build",
    "exit_status",
    "json_schema",
    "read_file",
    "run",
    "write_starter",
]
