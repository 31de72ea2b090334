"""What a pipeline guarantees and costs, in plain words."""
