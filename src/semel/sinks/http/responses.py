"""Reads one HTTP/1.1 response from bytes as they arrive; httptools (llhttp) parses it.

Always true:
- a status is known only from a complete head of a final response: 1xx is not an answer;
- a response is `whole` if its head is valid and its body ended where the head states, or was longer
  than is read; an incomplete or invalid response is not;
- a connection may be used again only after a whole response with no byte after it;
- a reader reads one response and keeps nothing for the next.
"""

from __future__ import annotations

import re

from httptools import HttpParserError, HttpResponseParser

from semel.sinks.http.http1 import ConnectionBroken

HEAD_MAX = 65_536
TEXT_MAX = 8_192

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_VERSIONS = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_DONE = re.compile(rb"HTTP/1\.[01] 2\d\d(?: [\t\x20-\x7e\x80-\xff]*)?\r\n")
"""The status line of a success, for a head that the parser refuses behind it."""


class Response:
    """Reads one response; the `on_` methods are called by the parser."""

    __slots__ = (
        "_broken",
        "_chunked",
        "_codings",
        "_done",
        "_fed",
        "_interim",
        "_length",
        "_parser",
        "_raw",
        "_refused",
        "_sized",
        "_surplus",
        "_tail",
        "keeps",
        "retry_after",
        "status",
        "text",
        "whole",
    )

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._raw = b""
        self._tail = b""
        self._fed = self._length = self._interim = 0
        self._codings: list[bytes] | None = None
        self._sized = self._chunked = self._done = self._surplus = False
        self._broken = self._refused = ""
        self.status = 0
        self.text = b""
        self.retry_after: str | None = None
        self.keeps = self.whole = False

    def feed(self, part: bytes) -> bool:
        """Take bytes; return whether the response is at its end. Raises `ConnectionBroken` if it is
        not a response.
        """
        if not self.status:
            self._raw = self._raw + part if self._raw else part
        self._fed += len(part)
        if self._refused:
            return self._refuse()
        valid = True
        try:
            self._parser.feed_data(part)
        except HttpParserError as error:
            valid = False
            if not self.status:
                self._refused = str(error)
        if not self.status:
            return self._within_head()
        if self._chunked:
            self._tail = (self._tail + part)[-len(_LAST_CHUNK) :]
        if self._done:
            self.whole = True
            self.keeps = self.keeps and valid and self._ended_exactly()
            del self._parser  # it knows this reader: together they would wait for the collector
            return True
        if len(self.text) >= TEXT_MAX:
            self.whole = valid
            return True
        return not valid

    @property
    def head_alone(self) -> bool:
        """Whether a head came, and no byte behind it."""
        end = self._raw.find(_HEAD_END, self._head_start()) + len(_HEAD_END)
        return bool(self.status) and self._fed == end

    def end(self) -> None:
        """The service closed the connection in order: what has no length ends so."""
        if self.status and not (self._done or self._sized or self._chunked):
            self.whole = True

    # -- the head

    def _within_head(self) -> bool:
        if self._broken:
            raise ConnectionBroken(self._broken)
        if self._refused:
            return self._refuse()
        if len(self._raw) > HEAD_MAX:
            raise ConnectionBroken("the head of the response does not end")
        return False

    def _refuse(self) -> bool:
        """A head that the parser refuses is not an answer, except for a success, for which the
        length of the body does not matter. Its end is awaited, so that the result does not depend
        on the pieces it arrives in.
        """
        start = self._head_start()
        found = _DONE.match(self._raw, start)
        if found is None or len(self._raw) > HEAD_MAX:
            raise ConnectionBroken(
                f"this is not an HTTP/1.1 response: {self._raw[start : start + 40]!r}"
            )
        if self._raw.find(_HEAD_END, start) < 0:
            return False
        self.status = int(self._raw[start + 9 : start + 12])
        return True

    def _head_start(self) -> int:
        at = 0
        for _ in range(self._interim):
            at = self._raw.find(_HEAD_END, at) + len(_HEAD_END)
        return at

    # -- the end

    def _ended_exactly(self) -> bool:
        """Whether its end is certain, and no byte follows."""
        if self._surplus:
            return False
        start = self._head_start()
        if self._raw[start : start + 9] != _VERSIONS[0]:
            return False
        if self._codings is not None:
            return self._codings == [b"chunked"] and self._tail == _LAST_CHUNK
        head_end = self._raw.find(_HEAD_END, start) + len(_HEAD_END)
        return self._fed == head_end + self._length

    # -- what the parser calls

    def on_message_begin(self) -> None:
        """Another response begins; after a final one it is unexpected."""
        if self.status:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line of the head; trailers are not asked for."""
        if self.status:
            return
        match name.lower():
            case b"content-length":
                self._sized = True
            case b"transfer-encoding":
                codings = [each.strip().lower() for each in value.split(b",")]
                self._codings = [*(self._codings or ()), *codings]
            case b"retry-after":
                self.retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is whole: know the status, or that it was on its way only."""
        if self.status or self._broken:
            return
        status = self._parser.get_status_code()
        start = self._head_start()
        if self._raw[start : start + 9] not in _VERSIONS or not 100 <= status <= 999:
            shown = self._raw[start : start + 40]
            self._broken = f"this is not an HTTP/1.1 response: {shown!r}"
        elif status == 101:
            self._broken = "the service changed the protocol"
        elif status < 200:
            self._interim += 1
            self._sized, self._codings, self.retry_after = False, None, None
        else:
            self.status = status
            bare = status in (204, 304)
            chunked = self._codings is not None and self._codings[-1] == b"chunked"
            self._chunked = chunked and not bare
            self._sized = self._sized or bare

    def on_body(self, part: bytes) -> None:
        """Take a piece of the body; only its beginning is kept."""
        if self._done:
            return
        self._length += len(part)
        if len(self.text) < TEXT_MAX:
            self.text += part

    def on_message_complete(self) -> None:
        """The response is at its end; only now it is known whether the connection can be used
        again.
        """
        if self.status and not self._done:
            self._done = True
            self.keeps = self._parser.should_keep_alive()
