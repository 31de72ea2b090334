"""How values become text and come back: canonical JSON, dictionaries, Python values, times."""
