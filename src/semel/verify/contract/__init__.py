"""The contract suite of sinks: every step crashed, every claim checked."""
