"""Reading a ledger without running a pipeline: lists, traces, checks."""
