"""Where each key and each value of a TOML text stands: its line and column.

`tomllib` reads the values and gives no places, so this reads the places and no values.

Always true:
- it is only used on a text that `tomllib` accepts, and follows the same grammar;
- a path is that of the value in what `tomllib` returns: keys of tables, and indexes of lists.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field

Path = tuple[str | int, ...]

DEPTH_MAX = 50
"""How deep tables and lists may be nested in a pipeline file; no setting needs so much."""

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?'{3,5}", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")


@dataclass(frozen=True, slots=True, order=True)
class TextPlace:
    """A place in a text; lines and columns count from one."""

    line: int
    column: int


class TooDeep(Exception):
    """Tables or lists are nested more than `DEPTH_MAX` deep, at `place`."""

    def __init__(self, place: TextPlace) -> None:
        super().__init__(place)
        self.place = place


@dataclass(slots=True)
class Positions:
    """The places of a text's keys and values, by path.

    Attributes:
        keys: where a key stands, or the header of a table, or an element of a list.
        values: where a value begins.
    """

    keys: dict[Path, TextPlace] = field(default_factory=dict)
    values: dict[Path, TextPlace] = field(default_factory=dict)

    def key(self, path: Path) -> TextPlace:
        """Return the place of a key, or of the nearest table around it."""
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path, TextPlace(1, 1))

    def value(self, path: Path) -> TextPlace:
        """Return the place of a value, or of the nearest table around it."""
        return self.values.get(path) or self.key(path)


def read_positions(text: str) -> Positions:
    """Return the places of a text that `tomllib` accepts. Raises `TooDeep`."""
    return _Scanner(text.replace("\r\n", "\n")).read()


class _Scanner:
    """Walks through one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found = Positions()
        self._elements: dict[Path, int] = {}
        self._line = 1
        self._line_start = 0
        self._counted = 0

    def read(self) -> Positions:
        """Read headers and pairs to the end."""
        table: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self._found

    def _here(self) -> TextPlace:
        """Return the current place; the scanner only goes forward."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._line_start = self._text.rfind("\n", 0, self._at) + 1
        self._counted = self._at
        return TextPlace(self._line, self._at - self._line_start + 1)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise AssertionError(f"not TOML at {self._here()}: tomllib has read it before")
        self._at = found.end()
        return found[0]

    def _header(self) -> Path:
        """Read `[a.b]` or `[[a.b]]`, and return the path of the table."""
        place = self._here()
        brackets = 2 if self._text.startswith("[[", self._at) else 1
        self._at += brackets
        names = [name for name, _ in self._names()]
        self._at += brackets
        path: Path = ()
        for name in names[:-1]:
            path = self._entered((*path, name))
            self._found.keys.setdefault(path, place)
        path = (*path, names[-1])
        if brackets == 2:
            self._found.keys.setdefault(path, place)
            self._elements[path] = self._elements.get(path, -1) + 1
            path = (*path, self._elements[path])
        self._found.keys[path] = place
        return path

    def _entered(self, path: Path) -> Path:
        """Return the path of a table; in an array of tables that is the last one."""
        return (*path, self._elements[path]) if path in self._elements else path

    def _names(self) -> list[tuple[str, TextPlace]]:
        """Read a key with its dots: the names, and where each stands."""
        names = []
        while True:
            self._skip(_SPACE)
            place = self._here()
            names.append((self._name(), place))
            if len(names) > DEPTH_MAX:
                raise TooDeep(place)
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return names
            self._at += 1

    def _name(self) -> str:
        mark = self._text[self._at]
        if mark == '"':
            quoted: str = tomllib.loads(f"name = {self._skip(_BASIC)}")["name"]
            return quoted
        return self._skip(_LITERAL)[1:-1] if mark == "'" else self._skip(_BARE)

    def _pair(self, table: Path) -> None:
        path = table
        for name, place in self._names():
            path = (*path, name)
            self._found.keys.setdefault(path, place)
        self._at += 1  # the sign =
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        self._found.values[path] = place = self._here()
        if len(path) > DEPTH_MAX:
            raise TooDeep(place)
        mark = self._text[self._at]
        if mark == "[":
            self._list(path)
        elif mark == "{":
            self._inline_table(path)
        elif mark == '"':
            long = self._text.startswith('"""', self._at)
            self._skip(_LONG_BASIC if long else _BASIC)
        elif mark == "'":
            long = self._text.startswith("'''", self._at)
            self._skip(_LONG_LITERAL if long else _LITERAL)
        else:
            self._skip(_SCALAR)

    def _list(self, path: Path) -> None:
        self._at += 1
        number = 0
        while True:
            self._skip(_BLANK)
            if self._text[self._at] == "]":
                self._at += 1
                return
            self._found.keys[(*path, number)] = self._here()
            self._value((*path, number))
            number += 1
            self._skip(_BLANK)
            if self._text[self._at] == ",":
                self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while True:
            self._skip(_BLANK)  # TOML 1.1 allows line breaks
            if self._text[self._at] == "}":
                self._at += 1
                return
            self._pair(path)
            self._skip(_BLANK)
            if self._text[self._at] == ",":
                self._at += 1
