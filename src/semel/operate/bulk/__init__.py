"""Many parked events at once: chosen by a filter, resolved, exported and imported."""
