"""HttpProblem details (RFC 9457): what is wrong with a request, where, and what to do.

Always true:
- a problem names the place (a field, a line, a JSON pointer) and the value, shortened and escaped;
- no problem shows a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import plain_text
from semel.events.encoding import ascii_json

if TYPE_CHECKING:
    from http import HTTPStatus

PROBLEM_TYPE = b"application/problem+json"
_VALUE_MAX = 100


class HttpProblem(Exception):
    """A request that is refused; it becomes the response.

    Attributes:
        status: the status of the response.
        members: the members of the problem document beside `type`, `title` and `status`.
        retry_after_s: after how many seconds the request can be sent again, where that helps.
    """

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        *,
        retry_after_s: int | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        **where: Any,
    ) -> None:
        super().__init__(status, detail)
        self.status = status
        self.retry_after_s = retry_after_s
        self.members = {"detail": detail, **where}
        self._headers = headers

    def __str__(self) -> str:
        return f"{self.status.value}: {self.members['detail']}"

    def at(self, event: int) -> HttpProblem:
        """Return the same problem for the event with this index in a batch."""
        pointer = f"/{event}{self.members.get('pointer', '')}"
        return self._with(event=event, pointer=pointer)

    def on_line(self, line: int) -> HttpProblem:
        """Return the same problem for the event on this line; the text was read as one line."""
        detail = str(self.members["detail"]).replace("line 1,", f"line {line},", 1)
        return self._with(detail=detail, line=line)

    def _with(self, **members: Any) -> HttpProblem:
        changed = {**self.members, **members}
        detail = changed.pop("detail")
        return HttpProblem(
            self.status,
            detail,
            retry_after_s=self.retry_after_s,
            headers=self._headers,
            **changed,
        )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that this problem adds to the response."""
        headers = list(self._headers)
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        return headers

    def body(self) -> bytes:
        """Return the problem document."""
        document = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": self.status.value,
            **self.members,
        }
        return ascii_json(document).encode()


def shown(value: object) -> str:
    """Return a value from a request as a problem shows it: printable and short."""
    return plain_text(value, _VALUE_MAX)
