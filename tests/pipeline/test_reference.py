"""docs/reference/pipeline-file.md has every key of a file, and its examples are valid."""

from __future__ import annotations

import re
import tomllib

import pytest

from semel.pipeline import json_schema
from support.docs_blocks import blocks
from support.pipeline_files import Build
from support.reference import PAGE, TABLES, names, written


def test_the_tables_of_the_page_are_those_of_the_schema() -> None:
    """`make reference` writes them again."""
    text = PAGE.read_text()
    assert names(text) == list(TABLES)
    assert set(TABLES.values()) == set(json_schema()["$defs"])
    assert written(text) == text


@pytest.mark.parametrize("page", ["README.md", "docs/reference/pipeline-file.md"])
def test_the_pipeline_file_of_a_page_is_valid(page: str, built: Build) -> None:
    text = blocks(page, "toml")[0].text
    pipeline = built(text, BANK_TOKEN="a-token")
    assert (pipeline.name, pipeline.sinks[0].name) == ("charges", "http")
    assert pipeline.specification().partitions is None


def test_the_example_of_several_sources_is_valid(built: Build) -> None:
    whole, several = (each.text for each in blocks("docs/reference/pipeline-file.md", "toml"))
    sections = re.split(r"^(?=\[(?:source|transform)\])", whole, flags=re.MULTILINE)
    rest = [each for each in sections if not each.startswith(("[source]", "[transform]"))]
    _, identity, sinks = whole.partition("[identity]")
    made = built("".join(rest) + several + identity + sinks, BANK_TOKEN="a-token")
    assert set(made.file.sections.named_sources) == {"orders", "customers"}


def test_the_messages_of_the_page_are_those_of_the_code() -> None:
    [block] = [each for each in blocks("docs/reference/pipeline-file.md") if "windw" in each.text]
    assert all(re.match(r"semel: charges.toml:\d+:\d+: ", each) for each in block.text.splitlines())


def test_the_blocks_of_toml_can_be_read() -> None:
    for each in blocks("docs/reference/pipeline-file.md", "toml"):
        tomllib.loads(each.text)
