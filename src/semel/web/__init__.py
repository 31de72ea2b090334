"""What the web faces share: tokens, limits for hostile clients, problem documents, a server."""

from semel.web.guarded_http import guarded
from semel.web.problems import PROBLEM_TYPE, HttpProblem, shown
from semel.web.serving import (
    Lookups,
    listen,
    require_own_name,
    require_safe,
    serve_app,
)
from semel.web.tokens import Tokens

__all__ = [
    "PROBLEM_TYPE",
    "HttpProblem",
    "Lookups",
    "Tokens",
    "guarded",
    "listen",
    "require_own_name",
    "require_safe",
    "serve_app",
    "shown",
]
