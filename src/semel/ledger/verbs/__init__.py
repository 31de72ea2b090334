"""What is done to the ledger, one subject per file."""
