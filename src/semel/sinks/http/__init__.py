"""An HTTP service as a destination: a call per event, in order per entity, many at once."""

from semel.sinks.http.sink import Basic, Bearer, Certificate, Http

__all__ = ["Basic", "Bearer", "Certificate", "Http"]
