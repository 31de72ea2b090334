"""Events kept beside the stream: parked, in doubt, or to be resent."""
