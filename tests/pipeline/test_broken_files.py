"""Broken pipeline files, made of valid ones: a clear error with file and line, and no traceback."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.pipeline import WrongPipelineFile, build, read_file
from semel.pipeline.positions import read_positions
from support.command_line import semel
from support.pipeline_files import VALID

BROKEN = 400
SEED = 20_261_118
LINE = re.compile(r"(?P<file>.+):(?P<line>\d+):(?P<column>\d+): (?P<message>\S.{8,})")

Mutation = Callable[[str, random.Random], str]


# -- of the text


def cut(text: str, chance: random.Random) -> str:
    return text[: chance.randrange(1, len(text))]


def without_a_character(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text))
    return text[:at] + text[at + 1 :]


def with_a_character(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text))
    return text[:at] + chance.choice("\"'[]{}=,.#\\\n$\0\u202eé7a") + text[at:]


def without_a_line(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    return "".join(lines)


def with_a_line_twice(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    return "".join([*lines[:at], lines[at], *lines[at:]])


def with_lines_exchanged(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "".join(lines)


# -- of a key or a value

OTHERS = ["-1", "1.5", "true", '""', '"x y"', "[]", "[1, 'a']", "{}", "{ a = [] }", "1979-05-27"]
OTHERS += ['"${NOT_SET}"', '"${file:none}"', '"${"', "inf", '"\\u0007"', "[[1]]", "07:32:00"]


def with_another_value(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    pairs = [at for at, line in enumerate(lines) if re.match(r"[\w.]+ = .*[^\n'\"]?\n", line)]
    at = chance.choice(pairs)
    lines[at] = lines[at].partition("=")[0] + "= " + chance.choice(OTHERS) + "\n"
    return "".join(lines)


def with_another_key(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    at = chance.choice([at for at, line in enumerate(lines) if re.match(r"\w+ = ", line)])
    key, _, rest = lines[at].partition(" ")
    place = chance.randrange(len(key))
    lines[at] = f"{key[:place]}{chance.choice('xq_')}{key[place:]} {rest}"
    return "".join(lines)


MUTATIONS: list[Mutation] = [
    cut,
    without_a_character,
    with_a_character,
    without_a_line,
    with_a_line_twice,
    with_lines_exchanged,
    with_another_value,
    with_another_key,
]


def judge(path: Path) -> list[str]:
    """Read a file as `semel check` does; return the lines of its error, none if it is valid."""
    try:
        build(read_file(path, {}))
    except WrongPipelineFile as error:
        return str(error).splitlines()
    return []


def unclear(line: str, path: Path, text: str) -> str:
    """What is wrong with a line of an error; empty if it is clear."""
    shown = LINE.fullmatch(line)
    if shown is None or shown["file"] != str(path):
        return f"no file, line and column, or no message: {line}"
    if not 1 <= int(shown["line"]) <= text.count("\n") + 1:
        return f"the file has no such line: {line}"
    if "Traceback" in line or "Error:" in line.replace("ModuleNotFoundError:", ""):
        return f"an error of Python: {line}"
    return ""


def changed_line(before: str, after: str) -> int:
    """The number of the first line that differs."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next(at for at, (one, other) in enumerate(pairs, 1) if one != other)


def test_an_unclear_error_is_found() -> None:
    path, text = Path("a.toml"), "[pipeline]\nname = 7\n"
    assert unclear("a.toml:2:8: name must be a text, got 7", path, text) == ""
    for line in (
        "name must be a text, got 7",
        "b.toml:2:8: name must be a text, got 7",
        "a.toml:2:8: wrong",
        "a.toml:4:1: name must be a text, got 7",
        "a.toml:2:8: KeyError: 'name' of the pipeline",
        "Traceback (most recent call last):",
    ):
        assert unclear(line, path, text), line


@pytest.mark.parametrize("mutation", [with_another_value, with_another_key])
def test_the_error_is_where_the_file_was_changed(mutation: Mutation, folder: Path) -> None:
    """At its line; a value may be wrong because of another one, a few lines further."""
    print(f"seed {SEED}, {mutation.__name__}")  # noqa: T201 - to repeat a failure
    chance = random.Random(f"{SEED} {mutation.__name__}")
    path = folder / "broken.toml"
    for _ in range(100):
        before = chance.choice(list(VALID.values()))
        text = mutation(before, chance)
        path.write_text(text)
        found = [int(shown["line"]) for each in judge(path) if (shown := LINE.fullmatch(each))]
        if found:
            changed = changed_line(before, text)
            away = min(abs(each - changed) for each in found)
            assert away <= (3 if mutation is with_another_value else 0), (judge(path), text)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
def test_a_broken_file_gives_clear_errors_with_file_and_line(
    mutation: Mutation, folder: Path
) -> None:
    print(f"seed {SEED}, {mutation.__name__}")  # noqa: T201 - to repeat a failure
    chance = random.Random(f"{SEED} {mutation.__name__}")
    path = folder / "broken.toml"
    broken = 0
    for _ in range(10 * BROKEN // len(MUTATIONS)):
        text = mutation(chance.choice(list(VALID.values())), chance)
        path.write_text(text)
        found = judge(path)
        wrong = [each for line in found if (each := unclear(line, path, text))]
        assert wrong == [], text
        broken += bool(found)
        if broken >= BROKEN // len(MUTATIONS):
            return
    raise AssertionError(f"only {broken} broken files of {mutation.__name__}")


@pytest.mark.parametrize("name", VALID)
def test_a_misspelt_key_is_reported_at_its_own_line(name: str, folder: Path) -> None:
    """Each key of the file, one after the other, gets a letter too many."""
    text = VALID[name]
    free = {"options", "settings", "headers", "config", "views", "body", "sources"}
    lines = text.splitlines(keepends=True)
    checked = 0
    for path, place in read_positions(text).keys.items():
        key, line = str(path[-1]), lines[place.line - 1]
        if free & set(map(str, path)) or "'''" in line or not line.startswith(f"{key} ="):
            continue
        changed = [*lines]
        changed[place.line - 1] = f"{key}q{line.removeprefix(key)}"
        (folder / "broken.toml").write_text("".join(changed))
        found = judge(folder / "broken.toml")
        expected = f"{folder / 'broken.toml'}:{place.line}:1: unknown key '{key}q'"
        own = any(each.startswith(expected) and repr(key) in each for each in found)
        assert own, (expected, found)
        checked += own
    assert checked > 8


def test_every_missing_table_or_required_key_is_named(folder: Path) -> None:
    text = VALID["full"]
    required = ["name", "checkpoint", "format", "type", "url"]
    for key in required:
        at = text.index(f"\n{key} = ") + 1
        (folder / "broken.toml").write_text(text[:at] + text[text.index("\n", at) + 1 :])
        found = judge(folder / "broken.toml")
        assert any(re.search(rf"needs .*\b{key}\b", each) for each in found), (key, found)


def test_the_command_prints_the_errors_of_broken_files_and_no_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    path = folder / "broken.toml"
    broken = 0
    for number in range(240):
        path.write_text(MUTATIONS[number % len(MUTATIONS)](VALID["full"], chance))
        for command in ("check", "run", "explain") if number < 40 else ("check",):
            if command == "run" and not judge(path):
                continue
            status, out, err = semel(capsys, command, str(path))
            if status == 0:
                continue
            broken += 1
            assert (status, out) == (2, "")
            for line in err.splitlines():
                assert line.startswith(f"semel: {path}:"), err
    assert broken >= 200


DIGITS, HEX, DEEP = "9" * 400, "0x" + "f" * 8_000, "a." * 3_000
NOBODY = "~nobody-has-this-name"


EXTREMES = [
    ("timeout_s = 4.5", f"timeout_s = {DIGITS}", "integers have 64 bits at most"),
    ('remember = "12h"', f"remember = {DIGITS}", "integers have 64 bits at most"),
    ("partitions = 4", f"partitions = -{DIGITS}", "integers have 64 bits at most"),
    ('name = "charges"', f"name = {HEX}", "integers have 64 bits at most"),
    ('name = "charges"', 'name = "charges@1"', "remove the @"),
    ("maxFilesPerTrigger = 2", f"maxFilesPerTrigger = {HEX}", "integers have 64 bits at most"),
    ("accept_gap = false", f"metrics = {HEX}", "integers have 64 bits at most"),
    ('["{part}", 1, true]', f"[[{HEX}]]", "integers have 64 bits at most"),
    ("partitions = 4", f"{DEEP}x = 1", "nested more than 50 deep"),
    ("multiLine = false", f"{DEEP}x = 1", "nested more than 50 deep"),
    ("multiLine = false", f"x = {'[' * 60}{']' * 60}", "nested more than 50 deep"),
    ("multiLine = false", f"x = {'{a=' * 60}1{'}' * 60}", "nested more than 50 deep"),
    ("[source.options]", f"[{DEEP}x]", "nested more than 50 deep"),
    ('"checkpoints/charges"', f'"{NOBODY}/c"', "home directory"),
    ('path = "payments"', f'path = "{NOBODY}/c"', "home directory"),
    ('url = "out"', f'url = "{NOBODY}/c"', "home directory"),
    ("accept_gap = false", f'audit = "{NOBODY}/c"', "home directory"),
    ('user = "u"', f'user = "${{file:{NOBODY}/c}}"', "home directory"),
    ('"checkpoints/charges"', '"a\\u0000b"', "one line of printable characters"),
    ('url = "out"', 'url = "a\\nb"', "one line of printable characters"),
    ("first_s = 0.5", "first_s = 0", "first_s and most_s must be greater than 0"),
    ("accept_gap = false", 'audit = "a\\u0000b"', "one line of printable characters"),
    ('"sqlite:///charges.db"', '"charges.db"', "is not the URL of a ledger"),
    ('"sqlite:///charges.db"', '"mysql://u:pw@h/db"', "is not the URL of a ledger"),
    ('"sqlite:///charges.db"', '"postgresql://[::1"', "is not a URL that can be read"),
    ('"sqlite:///charges.db"', '"sqlite:///a\\u0000b"', "one line of printable characters"),
]


@pytest.mark.parametrize(
    ("old", "new", "said"), EXTREMES, ids=[f"{old} {said}"[:50] for old, _, said in EXTREMES]
)
def test_what_a_file_can_write_and_nothing_can_use_is_a_problem_at_its_line(
    old: str, new: str, said: str, folder: Path
) -> None:
    assert VALID["full"].count(old) == 1
    text = VALID["full"].replace(old, new)
    path = folder / "broken.toml"
    path.write_text(text)
    found = judge(path)
    assert [each for line in found if (each := unclear(line, path, text))] == []
    changed = changed_line(VALID["full"], text)
    assert [each for each in found if f":{changed}:" in each and said in each], found


def test_the_end_of_a_file_is_in_its_last_line_whatever_characters_break_lines_elsewhere(
    folder: Path,
) -> None:
    text = "[pipeline]\nname = 'a\u2028\x85b"
    (folder / "broken.toml").write_text(text)
    [line] = judge(folder / "broken.toml")
    assert line.startswith(f"{folder / 'broken.toml'}:2:"), line


def test_a_module_whose_error_cannot_be_printed_is_a_problem_at_its_line(folder: Path) -> None:
    (folder / "mute.py").write_text(
        "class Mute(Exception):\n    def __str__(self):\n        raise ValueError('mute')\n"
        "raise Mute\n"
    )
    path = folder / "broken.toml"
    path.write_text(VALID["full"].replace('type = "http"', 'type = "mute:sink"', 1))
    [line] = judge(path)
    assert line == f"{path}:{line.split(':')[1]}:8: cannot import 'mute': Mute, without a message"


def test_valid_files_are_valid(folder: Path) -> None:
    for text in VALID.values():
        (folder / "p.toml").write_text(text)
        assert judge(folder / "p.toml") == []


def test_no_message_shows_a_password_that_is_written_in_the_file(folder: Path) -> None:
    secret = "hunter2-hunter2"
    text = VALID["full"].replace("some-password", secret).replace("u:pw@", f"u:{secret}@")
    chance = random.Random(SEED)
    for _ in range(150):
        (folder / "broken.toml").write_text(chance.choice(MUTATIONS)(text, chance))
        assert not [each for each in judge(folder / "broken.toml") if secret in each]
