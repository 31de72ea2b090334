"""Encodings of values: canonical JSON, dictionary columns, Python values, dates and timestamps."""

from semel.events.encoding import moments, python_values
from semel.events.encoding.canonical_json import PreEncoded, canonical, compressed
from semel.events.encoding.dictionary_column import Labels
from semel.events.encoding.python_values import CANNOT, ArrowValue, require_values

__all__ = [
    "CANNOT",
    "ArrowValue",
    "Labels",
    "PreEncoded",
    "canonical",
    "compressed",
    "moments",
    "python_values",
    "require_values",
]
