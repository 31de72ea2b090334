"""Every key and value of a TOML text has its line and column."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.pipeline.positions import Path, TextPlace, read_positions


def paths(value: Any, path: Path = ()) -> set[Path]:
    """The paths of everything in what tomllib returns."""
    found = {path} if path else set()
    lists = enumerate(value) if isinstance(value, list) else ()
    for name, each in value.items() if isinstance(value, dict) else lists:
        found |= paths(each, (*path, name))
    return found


def places(text: str) -> dict[Path, tuple[int, int]]:
    return {path: (at.line, at.column) for path, at in read_positions(text).keys.items()}


EXAMPLES = {
    "plain": 'a = 1\n b = "x"  # c = 3\n\n[t]\nc = 2\n',
    "dotted": "a.b.c = 1\na.b.d = 2\n[t.u]\nx.y = 1\n",
    "quoted": '"a b" = 1\n\'c.d\'.e = 2\n["t u".\'v.w\']\n"\\u0041" = 3\n',
    "long texts": "a = \"\"\"one\n[no]\nb = 1\n\"\"\\\"\"\"\" \nb = '''\n[[no]] # '' ''''\nc = 1\n",
    "quotes at the end": 'a = """x"""""\nb = 2\n',
    "escaped": 'a = "x\\"]} # y"\nb = "\\\\"\nc = \'\\\'\nd = 4\n',
    "arrays of tables": "[[a]]\nx = 1\n[[a]]\nx = 2\n[[a.b]]\ny = 1\n[[a.b]]\n[a.c]\nz = 1\n",
    "inline": 'a = { b = 1, c = { d = "}" }, e = [1, { f = 2 }] }\ng = {}\n',
    "lists": 'a = [\n  1, # one ]\n  "],",\n  [2, 3],\n]\nb = []\nc = [[], [ ]]\n',
    "scalars": "a = 1979-05-27 07:32:00Z\nb = -inf\nc = 0x_\n".replace("0x_", "0xff")
    + "d = 1e3 # x\ne=true\n",
    "windows": "a = 1\r\n[t]\r\nb = '''x\r\ny'''\r\nc = 3\r\n",
    "spaces in headers": "[ a . b ]\nc = 1\n[[ d ]]\n\te\t=\t1\n",
    "super table later": "[a.b]\nc = 1\n[a]\nd = 2\n",
    "no line end": "a = 1",
    "empty": "# nothing\n\n",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_path_that_tomllib_reads_has_a_place(name: str) -> None:
    text = EXAMPLES[name]
    found = read_positions(text)
    assert set(found.keys) == paths(tomllib.loads(text))
    lines = text.replace("\r\n", "\n").split("\n")
    for path, place in found.keys.items():
        shown = lines[place.line - 1][place.column - 1 :]
        last = path[-1]
        if isinstance(last, str) and not shown.startswith("["):
            assert shown.lstrip("\"'").startswith((last, "\\u0041")), (path, place)


def test_a_place_is_a_line_and_a_column() -> None:
    text = 'a = 1\n[t]\n  b = { c = "x" }\n[[l]]\nd = [\n 1,\n 2]\n[[l]]\n'
    assert places(text) == {
        ("a",): (1, 1),
        ("t",): (2, 1),
        ("t", "b"): (3, 3),
        ("t", "b", "c"): (3, 9),
        ("l",): (4, 1),
        ("l", 0): (4, 1),
        ("l", 0, "d"): (5, 1),
        ("l", 0, "d", 0): (6, 2),
        ("l", 0, "d", 1): (7, 2),
        ("l", 1): (8, 1),
    }
    assert read_positions(text).values["t", "b", "c"] == TextPlace(3, 13)
    assert read_positions(text).key(("t", "b", "missing")) == TextPlace(3, 3)
    assert read_positions(text).key(("nowhere",)) == TextPlace(1, 1)


KEYS = st.sampled_from(["a", "b-c", '"d e"', "'f.g'", '"h\\"i"'])
SCALARS = st.sampled_from(
    ["1", "-2.5", "true", '"x"', "'y#'", '"""m\nn"""', "'''o\n[p]\n'''", "1979-05-27", '"]"']
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[ {', '.join(each)} ]"),
        st.lists(inner, max_size=3).map(
            lambda each: "[" + "".join(f"\n {e}, # ]" for e in each) + "\n]"
        ),
        st.dictionaries(KEYS, inner, max_size=2).map(
            lambda each: "{ " + ", ".join(f"{k} = {v}" for k, v in each.items()) + " }"
        ),
    ),
    max_leaves=6,
)
PAIRS = st.dictionaries(KEYS, VALUES, max_size=3).map(
    lambda each: "".join(f"{key} = {value}\n" for key, value in each.items())
)
TABLES = st.lists(
    st.tuples(st.sampled_from(["[{}]", "[[{}]]"]), st.lists(KEYS, min_size=1, max_size=2), PAIRS),
    max_size=4,
)


@given(top=PAIRS, tables=TABLES)
def test_any_text_that_tomllib_accepts_is_read_in_the_same_way(top: str, tables: Any) -> None:
    parts = [header.format(".".join(names)) + "\n" + pairs for header, names, pairs in tables]
    text = top + "\n".join(parts)
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(read_positions(text).keys) == paths(read)
