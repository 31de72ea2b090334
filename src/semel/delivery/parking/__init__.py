"""Events that wait beside the stream: parking, doubt, resends."""
