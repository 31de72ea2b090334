"""Answers that read a limited number of rows, whatever a ledger holds; for the console."""
