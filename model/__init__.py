"""The model of the protocol, and the check of the store's commits: `make model`."""
