"""Takes events over HTTP, stores them in an inbox, and says what became of them."""

from semel.ingress.requests import EntityPlace
from semel.ingress.server import serve
from semel.ingress.settings import PORT, TIMEOUT_S, IngressSettings

__all__ = ["PORT", "TIMEOUT_S", "EntityPlace", "IngressSettings", "serve"]
