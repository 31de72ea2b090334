"""The ways to deliver a partition, one per kind of recovery."""
