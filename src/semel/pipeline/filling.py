"""`${NAME}` and `${file:PATH}` in the values of a pipeline file.

Always true:
- a value that came from outside is known to `Problems`, which hides it in every message;
- an unset or empty variable, and a file that cannot be read, is a problem with its line.
"""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.pipeline.positions import Path
    from semel.pipeline.problems import Problems

_HOLE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_FILE = "file:"
_SECRET_BYTES_MAX = 65_536

PLAIN = frozenset({("pipeline", "name"), ("transform",), ("identity",)})
"""Where `${` is an ordinary text: names, columns, SQL."""

OF_A_SINK = frozenset({"type", "name"})

TEMPLATES = frozenset({"url", "headers", "body", "probe"})
"""Settings of an HTTP sink in which `{column}` is the value of a column."""


def fill_in(
    data: dict[str, Any], folder: FilePath, problems: Problems, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the values of a file with everything from outside in its place."""
    filled: dict[str, Any] = _Filling(folder, problems, environ).fill(data, ())
    return filled


class _Filling:
    def __init__(self, folder: FilePath, problems: Problems, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._problems = problems
        self._environ = environ

    def fill(self, value: Any, path: Path, *, template: bool = False) -> Any:
        """Return a value, with the values in it filled in; in a template braces are doubled."""
        if path in PLAIN or (path[:1] == ("sinks",) and len(path) == 3 and path[2] in OF_A_SINK):
            return value
        if isinstance(value, dict):
            made = {}
            for name, each in value.items():
                own = template or (value.get("type") == "http" and name in TEMPLATES)
                made[name] = self.fill(each, (*path, name), template=own)
            return made
        if isinstance(value, list):
            return [self.fill(e, (*path, at), template=template) for at, e in enumerate(value)]
        if not isinstance(value, str):
            return value
        return _HOLE.sub(lambda hole: self._in_place(hole, path, template=template), value)

    def _in_place(self, hole: re.Match[str], path: Path, *, template: bool) -> str:
        text = self._one(hole, path)
        if template and hole[0] != "$${":
            text = text.replace("{", "{{").replace("}", "}}")
        return text

    def _one(self, hole: re.Match[str], path: Path) -> str:
        name = hole[1]
        if hole[0] == "$${":
            return "${"
        if name is not None and name.startswith(_FILE):
            return self._of_file(name.removeprefix(_FILE), path)
        if name is None or not _VARIABLE.fullmatch(name):
            self._problems.at_value(
                path,
                f"expected ${{NAME}} (a variable of the environment) or ${{file:PATH}}, found "
                f"{hole[0]!r}; write $${{ for the two characters themselves",
            )
            return ""
        value = self._environ.get(name, "")
        if not value:
            self._problems.at_value(path, f"the environment has no variable {name}; set it")
        self._problems.hide(value)
        return value

    def _of_file(self, name: str, path: Path) -> str:
        """Return the text of a file, without the line break at its end."""
        try:
            place = self._folder / FilePath(name).expanduser()
            with place.open("rb") as file:
                raw = file.read(_SECRET_BYTES_MAX + 1)
            if len(raw) > _SECRET_BYTES_MAX:
                raise OSError(f"it has more than {_SECRET_BYTES_MAX} bytes")
            text = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            self._problems.at_value(path, f"the file {name!r} is not UTF-8")
            return ""
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # without a home directory RuntimeError
            why = getattr(error, "strerror", None) or error
            self._problems.at_value(path, f"the file {name!r} cannot be read: {why}")
            return ""
        if not text:
            self._problems.at_value(path, f"the file {name!r} is empty")
        self._problems.hide(text)
        return text
