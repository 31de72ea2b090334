"""What semel reads from a DataFrame before it starts, and how it spreads its rows over tasks."""
