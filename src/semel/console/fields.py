"""Reads the fields of queries and forms, and refuses those that no page of the console sends.

Always true: what is read is bounded, in bytes, in fields and in characters of each.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from semel.web import HttpProblem, shown

if TYPE_CHECKING:
    from starlette.requests import Request

FORM_BYTES_MAX = 64 * 1024
FIELD_MAX = 4_096
FIELDS_MAX = 50

_OWN_PATH = re.compile(r"/(?:(?!/)[!-\[\]-~]+)?")  # no host, no backslash, nothing invisible


def read_query(request: Request) -> dict[str, str]:
    """Return the fields of the query, checked. Raises `HttpProblem`."""
    return _checked(request.url.query)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, checked. Raises `HttpProblem`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HttpProblem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"a form is application/x-www-form-urlencoded, got {shown(kind)!r}",
        )
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > FORM_BYTES_MAX:
            raise HttpProblem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a form has at most {FORM_BYTES_MAX} bytes; shorten the reason",
            )
    return _checked(content.decode("utf-8", "replace"))


def _checked(written: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(written, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise HttpProblem(
            HTTPStatus.BAD_REQUEST, f"a request has at most {FIELDS_MAX} fields"
        ) from None
    for name, value in pairs:
        if len(value) > FIELD_MAX or "\0" in value:
            raise HttpProblem(
                HTTPStatus.BAD_REQUEST,
                f"the field {shown(name)!r} has more than {FIELD_MAX} characters, or one that no "
                "name can have; shorten it",
            )
    return dict(pairs)


def own_path(target: str) -> str:
    """Return a path of this console, whatever a form says about where to go next."""
    own = _OWN_PATH.fullmatch(target) and not target.startswith("/login")
    return target if own else "/"
