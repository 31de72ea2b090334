"""Encodings of values: canonical JSON, dictionary columns, Python values, dates and timestamps."""
