"""Where the events of a minibatch come from: the clock that sets markers, and their record."""

from semel.streams.marker_clock import APPLICATIONS, Application, Choice, MarkerClock
from semel.streams.markers import Markers, MarkerTaken, Newest, stream_of_pipeline

__all__ = [
    "APPLICATIONS",
    "Application",
    "Choice",
    "MarkerClock",
    "MarkerTaken",
    "Markers",
    "Newest",
    "stream_of_pipeline",
]
