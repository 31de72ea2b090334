"""Encodings of values: canonical JSON, Python values, dates and timestamps."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.events.encoding.canonical_json import (
        PreEncoded,
        ascii_json,
        canonical,
        canonical_parts,
        compressed,
        json_text,
        readable_json,
    )
    from semel.events.encoding.json_events import (
        json_column,
        json_value,
        plain_value,
    )
    from semel.events.encoding.moments import moment_texts, unwritable_moments
    from semel.events.encoding.python_values import CANNOT, arrow_value, kept_value, value_error
    from semel.events.encoding.tagged_values import ArrowValue, decode_value, encode_value

__all__ = [
    "CANNOT",
    "ArrowValue",
    "PreEncoded",
    "arrow_value",
    "ascii_json",
    "canonical",
    "canonical_parts",
    "compressed",
    "decode_value",
    "encode_value",
    "json_column",
    "json_text",
    "json_value",
    "kept_value",
    "moment_texts",
    "plain_value",
    "readable_json",
    "unwritable_moments",
    "value_error",
]

_HOMES = {
    "semel.events.encoding.moments": (
        "moment_texts",
        "unwritable_moments",
    ),
    "semel.events.encoding.json_events": (
        "json_column",
        "json_value",
        "plain_value",
    ),
    "semel.events.encoding.canonical_json": (
        "PreEncoded",
        "ascii_json",
        "canonical",
        "canonical_parts",
        "compressed",
        "json_text",
        "readable_json",
    ),
    "semel.events.encoding.python_values": (
        "CANNOT",
        "arrow_value",
        "kept_value",
        "value_error",
    ),
    "semel.events.encoding.tagged_values": ("ArrowValue", "decode_value", "encode_value"),
}
"""The names of each module, which is imported when one of them is first used: what reads no columns
loads neither Arrow nor NumPy.
"""
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import what a name stands for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'semel.events.encoding' has no attribute {name!r}")
    found: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found
