"""The strategies that deliver a partition, one per kind of recovery."""
