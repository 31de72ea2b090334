"""Encodings of values: canonical JSON, Python values, dates and timestamps."""

from semel.events.encoding import moments, python_values
from semel.events.encoding.json_events import interval_text, json_column, json_value, plain_value
from semel.events.encoding.json_text import (
    PreEncoded,
    ascii_json,
    canonical,
    canonical_parts,
    compressed,
    json_text,
    readable_json,
)
from semel.events.encoding.python_values import CANNOT, ArrowValue
from semel.events.encoding.tagged_values import decode_value, encode_value

__all__ = [
    "CANNOT",
    "ArrowValue",
    "PreEncoded",
    "ascii_json",
    "canonical",
    "canonical_parts",
    "compressed",
    "decode_value",
    "encode_value",
    "interval_text",
    "json_column",
    "json_text",
    "json_value",
    "moments",
    "plain_value",
    "python_values",
    "readable_json",
]
