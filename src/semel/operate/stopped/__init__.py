"""What changes a stopped pipeline: its number of partitions, where it begins, its name."""
