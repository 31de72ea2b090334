"""The style of src/semel, held by an ordinary unit test.

- A rule is a row of a table: what is banned, where it is allowed, what to do instead.
- A rule without a planted violation that it finds is itself a failure.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from io import StringIO
from os.path import normpath
from pathlib import Path, PurePosixPath

import pytest

SRC = Path(__file__).parent.parent / "src"

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

FOLDER_FILES_MAX = 16
SMALL_FILE_LINES = 60

BANNED_MODULES = {"utils", "common", "core", "base", "helpers", "types"}
DOORS = {
    "semel.events.encoding",
    "semel.ledger.store",
    "semel.ledger.store.libpq",  # URLs of PostgreSQL: the sink reads them too
    "semel.ledger.store.sqlite",  # the contract suite's own ledger
    "semel.ledger.store.sqlite_file",  # whether a file is a ledger, without opening it
    "semel.spark.deliver",  # what `semel` offers: the door would import all of Spark's room
    "semel.verify.chaos",
    "semel.verify.contract",
    "semel.verify.demo",
    "semel.verify.simulator",
    "semel.verify.store_contract",
}
"""Doors inside a room, and modules that other rooms may import around it, with the reason."""

IDENTITIES = re.compile(r"semel\.events(\.identity(\.\w+)?)?\.(Position|Given|Counter)")
"""The identities, by every path they can be imported from."""

BANNED_CLASSES = re.compile(r"(Manager|Handler|Helper|Base|Impl)$")

CLOCK = ("semel/runtime.py",)
FACES = ("semel/cli/*",)
SCRIPTS = ("semel/sinks/redis/scripts.py",)
"""Redis knows a script by its text, so a word in it stays."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name nobody may call or hand on, by its full path whatever it was imported as."""

    pattern: str
    instead: str
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A text no line may have, comments and strings included."""

    pattern: str
    instead: str
    allowed: tuple[str, ...] = ()


NAMES = (
    Name(r"time\.(time|monotonic)(_ns)?", "take a Clock", CLOCK),
    Name(r"time\.(perf_counter|process_time)(_ns)?", "take a Clock", CLOCK),
    Name(r"(time|asyncio)\.sleep", "take a Clock", CLOCK),
    Name(r"datetime\.datetime\.(now|utcnow|today)", "take a Clock", CLOCK),
    Name(r"datetime\.date\.today", "take a Clock", CLOCK),
    Name(r"random\.(?!Random\b)\w+", "take a random.Random"),
    Name(r"numpy\.random\.(?!Generator\b|default_rng\b)\w+", "take a numpy.random.Generator"),
    Name(
        r"json\.(dumps?|JSONEncoder)",
        "one writer for the whole project: use a function of semel.events.encoding",
        ("semel/events/encoding/canonical_json.py", "semel/events/encoding/json_events.py"),
    ),
    Name(r"print", "return the text; the caller prints", FACES),
)

TEXTS = (
    Text(r"\b(TODO|FIXME)\b", "do it now, or write it down where it will be read"),
    Text(
        r"\bif (not )?(\w+\.)*(testing|is_testing|under_test)\b",
        "faults enter through the interfaces production uses",
    ),
)

WORDS = (
    Text(
        r"(?i)\b(papers|anew|mend(ed|s)?|beating|(leave|left) away|taken? apart)\b",
        "plain English: docs, recreated or again, fix, running, remove, break down",
        ("CHANGELOG.md",),  # what a command no longer prints
    ),
    Text(
        r"(?i)\b(told|tells|nobody|somebody)\b",
        "plain English: says, reports or records; and name the subject that is meant",
        SCRIPTS,
    ),
    Text(
        r"(?<!here )\bis (none\b|no (?!longer\b|more\b|other\b|better\b)[a-z]+)",
        "plain English: is not a ...",
        SCRIPTS,
    ),
    Text(
        r"(?i)\bsay `?[a-z_]+=|\bwords? to the ledger\b|\bis to be done\b|\bto an end\b",
        "plain English: pass x=, a ledger write, the action that is meant, end",
    ),
)

BUILTINS = {"print"}
UNSEEDED = {"random.Random": "take a random.Random", "numpy.random.default_rng": "give the seed"}


@dataclass(frozen=True)
class Source:
    """One file: its path from src/, and its text."""

    path: str
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def imported(self) -> dict[str, str]:
        """The full path of every name an import binds, wherever in the file it stands."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    names[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return names

    @property
    def module(self) -> str:
        return ".".join(PurePosixPath(self.path).with_suffix("").parts).removesuffix(".__init__")

    @property
    def is_door(self) -> bool:
        return PurePosixPath(self.path).name == "__init__.py"

    def full_name(self, node: ast.expr) -> str | None:
        """Give `time.sleep` for whatever this file calls it; a builtin is its own name."""
        if isinstance(node, ast.Attribute):
            owner = self.full_name(node.value)
            return f"{owner}.{node.attr}" if owner else None
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, node.id if node.id in BUILTINS else None)
        return None


Finding = tuple[int, str]
Checker = Callable[[Source], Iterator[Finding]]


def is_allowed(source: Source, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(source.path, pattern) for pattern in patterns)


def check_docstring(source: Source) -> Iterator[Finding]:
    docstring = ast.get_docstring(source.tree)
    if not docstring:
        yield 1, "the file opens with no docstring: say in one sentence what it is"
        return
    sentence, _, rest = docstring.partition("\n")
    if not sentence.endswith(".") or re.search(r"[.!?] +[A-Z]", sentence):
        yield 1, "the docstring's first line is one sentence that ends with a period"
    if PurePosixPath(source.path).match("semel/*/__init__.py") and rest.strip():
        yield 1, "a room's docstring is one sentence; the rest belongs to its files or to docs/"


def check_file_length(source: Source) -> Iterator[Finding]:
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield lines, f"{lines} lines, at most {FILE_LINES_MAX}: part the file by subject"


def check_function_length(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = line_count(node)
        if ast.get_docstring(node) is not None:
            lines -= line_count(node.body[0])
        if lines > FUNCTION_LINES_MAX:
            yield node.lineno, f"{node.name}: {lines} lines, at most {FUNCTION_LINES_MAX}"


def line_count(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def check_module_name(source: Source) -> Iterator[Finding]:
    for name in PurePosixPath(source.path).with_suffix("").parts:
        if name.strip("_") in BANNED_MODULES:
            yield 1, f"`{name}` says nothing: name it for what it is about"


def check_class_name(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and (found := BANNED_CLASSES.search(node.name)):
            yield node.lineno, f"{node.name}: a noun without `{found[0]}`"


def check_bare_except(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except: name what is caught (a crash must stay a crash)"


def check_pyspark(source: Source) -> Iterator[Finding]:
    if is_allowed(source, ("semel/spark/*",)):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules = [node.module]
        else:
            continue
        if any(module.partition(".")[0] == "pyspark" for module in modules):
            yield node.lineno, "pyspark is imported in semel/spark only"


def check_doors(source: Source) -> Iterator[Finding]:
    """A room's `__init__` is its door: other rooms import from it, not from modules behind it."""
    room = PurePosixPath(source.path).parts[1]
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for module in imports_of(node):
            parts = module.split(".")
            around = len(parts) > 2 and parts[0] == "semel" and parts[1] not in (room, "urls")
            if around and module not in DOORS:
                yield node.lineno, f"{module} is behind a door: import from semel.{parts[1]}"


def imports_of(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The modules that a statement imports, also those that it takes from a package by name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif not node.level and node.module:
        yield node.module
        names = {alias.name for alias in node.names} - listed(node.module)
        yield from (f"{node.module}.{name}" for name in sorted(names) if is_module(node, name))


def is_module(node: ast.ImportFrom, name: str) -> bool:
    path = SRC.joinpath(*str(node.module).split("."), name)
    return path.is_dir() or path.with_suffix(".py").is_file()


@cache
def listed(package: str) -> frozenset[str]:
    """The names in `__all__` of a package: its door hands them out, modules and functions alike."""
    door = SRC.joinpath(*package.split("."), "__init__.py")
    if not door.exists():
        return frozenset()
    for node in ast.parse(door.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def check_identity(source: Source) -> Iterator[Finding]:
    """An identity answers by its methods; code elsewhere does not ask which one it is."""
    if is_allowed(source, ("semel/events/identity/*",)):
        return
    for node in ast.walk(source.tree):
        classes: ast.expr
        if isinstance(node, ast.MatchClass):
            classes = node.cls
        elif isinstance(node, ast.Call) and len(node.args) == 2:
            if not (
                isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")
            ):
                continue
            classes = node.args[1]
        else:
            continue
        for each in ast.walk(classes):
            name = source.full_name(each) if isinstance(each, ast.expr) else None
            if name and IDENTITIES.fullmatch(name):
                yield node.lineno, f"{name}: ask the identity by a method of `Identity`"


CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft"),
    *("remove", "setdefault", "update"),
}
"""Methods of a set, a list, a dict or a deque that change it."""


def check_own_state(source: Source) -> Iterator[Finding]:
    """In `delivery` an object changes its own state only: others take arguments and return results.

    Found are `other.x = ...`, `self.x.y += ...`, `del other.x`, `other.x[0] = ...` and
    `other.x.add(...)`. What a method is given, and local collections, are not looked at.
    """
    if not is_allowed(source, ("semel/delivery/*",)):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            targets = [node.func.value] if node.func.attr in CHANGING else []
        else:
            continue
        for target in targets:
            if found := foreign_attribute(target):
                yield node.lineno, f"`{found}` is another object's: give it a method, or return"


def foreign_attribute(target: ast.expr) -> str | None:
    """Give the attribute that a change goes to, unless it is one of `self` or `cls`."""
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    if isinstance(target, ast.Tuple | ast.List):
        return next(filter(None, map(foreign_attribute, target.elts)), None)
    if not isinstance(target, ast.Attribute):
        return None
    owner = target.value
    own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
    return None if own else ast.unparse(target)


def check_seed(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            name = source.full_name(node.func)
            if name in UNSEEDED:
                yield node.lineno, f"{name}() has no seed: {UNSEEDED[name]}"


def name_checker(rule: Name) -> Checker:
    def check(source: Source) -> Iterator[Finding]:
        if is_allowed(source, rule.allowed):
            return
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute | ast.Name):
                name = source.full_name(node)
                if name and re.fullmatch(rule.pattern, name):
                    yield node.lineno, f"{name}: {rule.instead}"

    return check


def text_checker(rule: Text) -> Checker:
    def check(source: Source) -> Iterator[Finding]:
        if is_allowed(source, rule.allowed):
            return
        for number, line in enumerate(source.text.splitlines(), 1):
            if found := re.search(rule.pattern, line):
                yield number, f"{found[0]}: {rule.instead}"

    return check


CHECKERS: dict[str, Checker] = {
    "docstring": check_docstring,
    "file length": check_file_length,
    "function length": check_function_length,
    "module name": check_module_name,
    "class name": check_class_name,
    "bare except": check_bare_except,
    "pyspark": check_pyspark,
    "door": check_doors,
    "identity": check_identity,
    "own state": check_own_state,
    "seed": check_seed,
    **{rule.pattern: name_checker(rule) for rule in NAMES},
    **{rule.pattern: text_checker(rule) for rule in (*TEXTS, *WORDS)},
}


# -- rules of the house: they look at all files together


def check_folders(sources: Sequence[Source]) -> Iterator[str]:
    """A folder that holds more files has two subjects."""
    folders = Counter(str(PurePosixPath(source.path).parent) for source in sources)
    for folder, files in sorted(folders.items()):
        if files > FOLDER_FILES_MAX:
            yield f"src/{folder}: {files} files, at most {FOLDER_FILES_MAX}: make a folder of some"


def check_small_files(sources: Sequence[Source]) -> Iterator[str]:
    """A small file that one other file imports belongs to its importer; doors are exempt."""
    modules = {source.module for source in sources}
    importers: dict[str, set[str]] = {module: set() for module in modules}
    for source in sources:
        for module in modules & set(imported_modules(source, modules)):
            importers[module].add(source.module)
    for source in sources:
        users = importers[source.module] - {source.module}
        lines = len(source.text.splitlines())
        small = lines < SMALL_FILE_LINES and not source.is_door
        if small and len(users) == 1:
            yield f"src/{source.path}: {lines} lines, only for {users.pop()}: put it there"


def imported_modules(source: Source, modules: AbstractSet[str]) -> Iterator[str]:
    """Yield the modules that a file imports, also those it imports for their types only."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


HOUSE: dict[str, Callable[[Sequence[Source]], Iterator[str]]] = {
    "folders": check_folders,
    "small files": check_small_files,
}


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    paths = sorted((SRC / "semel").rglob("*.py"))
    return [Source(path.relative_to(SRC).as_posix(), path.read_text("utf-8")) for path in paths]


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_source_is_tidy(checker: str, sources: list[Source]) -> None:
    assert sources
    found = [
        f"src/{source.path}:{line}: {message}"
        for source in sources
        for line, message in CHECKERS[checker](source)
    ]
    assert not found, "\n" + "\n".join(found)


PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/**/*.md")


@pytest.mark.parametrize("rule", WORDS, ids=lambda rule: rule.instead)
def test_the_pages_are_in_plain_english(rule: Text) -> None:
    """Decisions are never edited: what an old one says is left as it is."""
    root = SRC.parent
    pages = {path for pattern in PAGES for path in root.glob(pattern)}
    pages -= set((root / "docs" / "decisions").iterdir())
    assert len(pages) > 20
    found = [
        f"{path.relative_to(root)}:{line}: {message}"
        for path in sorted(pages)
        for line, message in text_checker(rule)(
            Source(path.relative_to(root).as_posix(), path.read_text("utf-8"))
        )
    ]
    assert not found, "\n" + "\n".join(found)


PROSE = ("tests/**/*.py", "benchmarks/**/*.py", "examples/*.py", ".ci/*.py")
OTHER_PROSE = (
    "Makefile",
    "pyproject.toml",
    "mkdocs.yml",
    ".pre-commit-config.yaml",
    ".github/**/*",
)


def prose(source: Source) -> Iterator[Finding]:
    """The comments and docstrings of a file, line by line."""
    for token in tokenize.generate_tokens(StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(source.tree):
        body = getattr(node, "body", [])
        for each in body if isinstance(body, list) else []:
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                lines = str(each.value.value).splitlines()
                yield from ((each.lineno + at, line) for at, line in enumerate(lines))


def words_in(lines: Iterator[Finding]) -> Iterator[Finding]:
    for number, line in lines:
        for rule in WORDS:
            if found := re.search(rule.pattern, line):
                yield number, f"{found[0]}: {rule.instead}"


def test_what_is_written_about_tests_and_benchmarks_is_in_plain_english() -> None:
    root = SRC.parent
    found = []
    for path in sorted(path for pattern in PROSE for path in root.glob(pattern)):
        source = Source(path.relative_to(root).as_posix(), path.read_text("utf-8"))
        if path != Path(__file__):  # it has the words
            found += [f"{source.path}:{at}: {what}" for at, what in words_in(prose(source))]
    for path in sorted(path for pattern in OTHER_PROSE for path in root.glob(pattern)):
        if path.is_file():
            lines = iter(list(enumerate(path.read_text("utf-8").splitlines(), 1)))
            found += [f"{path.relative_to(root)}:{at}: {what}" for at, what in words_in(lines)]
    assert not found, "\n" + "\n".join(found)


def test_a_planted_word_is_found_in_a_comment_and_in_a_docstring_only() -> None:
    text = 'x = "told"  # nobody can say\n\n\ndef f():\n    """Made anew."""\n    told = x\n'
    found = list(words_in(prose(Source("tests/a.py", text))))
    assert [at for at, _ in found] == [1, 5]


SAME_NAME: dict[str, str] = {}
"""Names of classes that have two meanings, with the reason."""


def classes_of_one_name(sources: list[Source]) -> Iterator[str]:
    """One class name, one meaning: report each name that a second class has."""
    places: dict[str, str] = {}
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name not in SAME_NAME:
                place = f"{normpath(f'src/{source.path}')}:{node.lineno}"
                if first := places.get(node.name):
                    yield f"{place}: {node.name} is a class of {first} too: name what differs"
                places.setdefault(node.name, place)


SHARED = ("benchmarks/**/*.py", "tests/support/**/*.py")
"""Other code that several files use. A test or an example names its own classes for itself."""


def test_a_class_name_has_one_meaning(sources: list[Source]) -> None:
    found = list(classes_of_one_name([*sources, *shared_sources()]))
    assert not found, "\n" + "\n".join(found)


def shared_sources() -> list[Source]:
    root = SRC.parent
    paths = sorted(path for pattern in SHARED for path in root.glob(pattern))
    assert len(paths) > 80
    return [Source(f"../{path.relative_to(root).as_posix()}", path.read_text()) for path in paths]


def test_a_planted_class_of_the_same_name_is_found() -> None:
    first = Source("semel/sinks/a.py", "class Case: ...\nclass Other: ...\n")
    second = Source("semel/verify/b.py", "def f():\n    class Case: ...\n")
    third = Source("../benchmarks/c.py", "class Other: ...\n")
    assert list(classes_of_one_name([first, second, third])) == [
        "src/semel/verify/b.py:2: Case is a class of src/semel/sinks/a.py:1 too: name what differs",
        "benchmarks/c.py:1: Other is a class of src/semel/sinks/a.py:2 too: name what differs",
    ]


def test_every_door_inside_a_room_is_used_by_another_room(sources: list[Source]) -> None:
    used = {
        module
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in imports_of(node)
        if module.split(".")[1:2] != source.module.split(".")[1:2]
    }
    assert sorted(DOORS - used) == []


@pytest.mark.parametrize("rule", HOUSE)
def test_the_house_is_tidy(rule: str, sources: list[Source]) -> None:
    found = list(HOUSE[rule](sources))
    assert not found, "\n" + "\n".join(found)


TIME, PERF, SLEEP, NOW, TODAY, RANDOM, NUMPY, JSON, PRINT = (rule.pattern for rule in NAMES)
UNFINISHED, TESTING = (rule.pattern for rule in TEXTS)
IDIOM, TOLD, IS_NO, SAY = (rule.pattern for rule in WORDS)

LONG = "    pass\n" * FUNCTION_LINES_MAX

PLANTED = [
    ("docstring", "semel/a.py", "x = 1\n"),
    ("docstring", "semel/a.py", ""),
    ("docstring", "semel/a.py", '"""No period"""\n'),
    ("docstring", "semel/a.py", '"""One sentence. And another."""\n'),
    ("docstring", "semel/a.py", '"""A sentence\nthat wraps."""\n'),
    ("docstring", "semel/ledger/__init__.py", ""),
    ("docstring", "semel/ledger/__init__.py", '"""What was done.\n\nAnd an essay.\n"""\n'),
    ("file length", "semel/a.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
    ("function length", "semel/a.py", f"def long():\n{LONG}"),
    ("function length", "semel/a.py", f"class A:\n  async def long():\n{LONG}"),
    ("module name", "semel/utils.py", ""),
    ("module name", "semel/ledger/_base.py", ""),
    ("module name", "semel/common/__init__.py", ""),
    ("class name", "semel/a.py", "class LedgerManager: ...\n"),
    ("class name", "semel/a.py", "def f():\n    class SinkBase: ...\n"),
    ("bare except", "semel/a.py", "try:\n    f()\nexcept:\n    g()\n"),
    ("pyspark", "semel/delivery/a.py", "import pyspark.sql\n"),
    ("pyspark", "semel/cli/a.py", "def f():\n    from pyspark.sql import Row\n"),
    ("door", "semel/delivery/a.py", "from semel.ledger.keys import make_key\n"),
    ("door", "semel/delivery/a.py", "import semel.ledger.keys\n"),
    ("door", "semel/delivery/a.py", "def f():\n    from semel.ledger import keys\n"),
    ("door", "semel/cli/a.py", "from semel.operate import inboxes as answers\n"),
    ("own state", "semel/delivery/a.py", "lane.short = True\n"),
    ("own state", "semel/delivery/a.py", "self._lane.figures.delivered += 1\n"),
    ("own state", "semel/delivery/strategies/a.py", "verdicts.to_park[1:] = []\n"),
    ("own state", "semel/delivery/a.py", "first, self._lane.sent = 1, 2\n"),
    ("own state", "semel/delivery/a.py", "self._caller.unsure.update({1})\n"),
    ("own state", "semel/delivery/a.py", "del lane.marks[1]\n"),
    ("door", "semel/cli/a.py", "def f():\n    from semel.verify.contract.suite import Suite\n"),
    ("identity", "semel/spark/a.py", "from semel.events import Given\nisinstance(x, Given)\n"),
    (
        "identity",
        "semel/guarantees/a.py",
        "from semel.events import Counter as C, Given\nwrong = isinstance(x, (Given, C))\n",
    ),
    (
        "identity",
        "semel/delivery/a.py",
        "from semel import events\nwrong = isinstance(x, str | events.Position)\n",
    ),
    (
        "identity",
        "semel/delivery/a.py",
        "from semel.events import Position\nmatch x:\n    case Position():\n        f()\n",
    ),
    ("seed", "semel/a.py", "import random\nr = random.Random()\n"),
    ("seed", "semel/a.py", "import numpy as np\nr = np.random.default_rng()\n"),
    (TIME, "semel/ledger/a.py", "import time\nnow = time.time()\n"),
    (TIME, "semel/ledger/a.py", "import time as t\nnow = t.monotonic_ns()\n"),
    (TIME, "semel/ledger/a.py", "from time import monotonic as m\nnow = m()\n"),
    (TIME, "semel/ledger/a.py", "import time\ndef f(clock=time.monotonic): ...\n"),
    (TIME, "semel/cli/a.py", "import time\nnow = time.time()\n"),
    (PERF, "semel/delivery/a.py", "import time\nnow = time.perf_counter()\n"),
    (SLEEP, "semel/delivery/a.py", "from time import sleep\nsleep(1)\n"),
    (SLEEP, "semel/delivery/a.py", "import asyncio\nasyncio.sleep(1)\n"),
    (NOW, "semel/a.py", "import datetime\ndatetime.datetime.now()\n"),
    (NOW, "semel/a.py", "from datetime import UTC, datetime\ndatetime.now(UTC)\n"),
    (TODAY, "semel/a.py", "from datetime import date\ndate.today()\n"),
    (RANDOM, "semel/a.py", "import random\nrandom.random()\n"),
    (RANDOM, "semel/a.py", "from random import choice\nchoice([1])\n"),
    (RANDOM, "semel/a.py", "import random\nrandom.SystemRandom()\n"),
    (NUMPY, "semel/a.py", "import numpy as np\nnp.random.rand(3)\n"),
    (JSON, "semel/sinks/a.py", "import json\ntext = json.dumps({})\n"),
    (JSON, "semel/cli/a.py", "from json import dumps as write\nwrite({})\n"),
    (JSON, "semel/events/encoding/a.py", "import json\nencode = json.JSONEncoder().encode\n"),
    (PRINT, "semel/verify/a.py", "print('seed 1')\n"),
    (UNFINISHED, "semel/a.py", "x = 1  # TODO: the rest\n"),
    (UNFINISHED, "semel/a.py", '"""FIXME."""\n'),
    (TESTING, "semel/a.py", "if testing:\n    pass\n"),
    (TESTING, "semel/a.py", "if not self.is_testing:\n    pass\n"),
    (IDIOM, "semel/a.py", '"""It is made anew."""\n'),
    (IDIOM, "semel/a.py", "message = 'the run is beating'\n"),
    (IDIOM, "docs/a.md", "Mend it, or leave away the option.\n"),
    (TOLD, "semel/a.py", "# nobody can say\n"),
    (TOLD, "docs/a.md", "The log tells it.\n"),
    (IS_NO, "semel/a.py", "message = 'name=7 is no name of a pipeline'\n"),
    (IS_NO, "semel/a.py", "message = 'identity is none; it can be position'\n"),
    (SAY, "semel/a.py", "message = 'or say accept_gap=True'\n"),
    (SAY, "docs/a.md", "Nothing is to be done.\n"),
]

CLEAN = [
    ("docstring", "semel/a.py", '"""One sentence, e.g. this.\n\nAnd more. Of it.\n"""\n'),
    ("docstring", "semel/__init__.py", '"""One sentence.\n\nAnd more.\n"""\n'),
    ("file length", "semel/a.py", "x = 1\n" * FILE_LINES_MAX),
    ("function length", "semel/a.py", f'def f():\n    """A\n\n    B.\n    """\n{LONG[9:]}'),
    ("module name", "semel/database.py", ""),
    ("class name", "semel/a.py", "class Database: ...\n"),
    ("bare except", "semel/a.py", "try:\n    f()\nexcept Exception:\n    g()\n"),
    ("pyspark", "semel/spark/a.py", "import pyspark\n"),
    ("pyspark", "semel/delivery/a.py", '"""The host is pyspark."""\nimport pysparkling\n'),
    ("door", "semel/delivery/a.py", "from semel.ledger import make_key\n"),
    ("door", "semel/delivery/a.py", "from semel import ledger, urls\nimport semel.ledger\n"),
    ("door", "semel/ledger/verbs/a.py", "from semel.ledger.keys import make_key\n"),
    ("door", "semel/delivery/a.py", "from semel.ledger.store import Put\n"),
    (
        "identity",
        "semel/spark/a.py",
        "from semel.events import Identity, Position\nx = Position()\nisinstance(x, Identity)\n",
    ),
    (
        "identity",
        "semel/spark/a.py",
        "from collections import Counter\nisinstance(x, Counter)\n",
    ),
    (
        "identity",
        "semel/events/identity/a.py",
        "from semel.events import Given\nisinstance(x, Given)\n",
    ),
    ("own state", "semel/delivery/a.py", "self.rows = 1\nself._seen.add(1)\nself._x[0] += 1\n"),
    ("own state", "semel/delivery/a.py", "found = []\nfound.append(1)\nfound[0] = 2\n"),
    ("own state", "semel/delivery/a.py", "self.parking.committed(parks)\nx = lane.position\n"),
    ("own state", "semel/ledger/a.py", "other.rows = 1\n"),
    ("seed", "semel/a.py", "import random\nr = random.Random(1)\n"),
    (TIME, "semel/runtime.py", "import time\nnow = time.monotonic()\n"),
    (TIME, "semel/a.py", '"""Never time.time()."""\ndef f(time):\n    return time.time()\n'),
    (PERF, "semel/runtime.py", "import time\nnow = time.perf_counter()\n"),
    (SLEEP, "semel/a.py", "def f(clock):\n    clock.sleep(1)\n"),
    (NOW, "semel/a.py", "from datetime import datetime\ndatetime.fromtimestamp(0)\n"),
    (RANDOM, "semel/a.py", "import random\ndef f(r: random.Random):\n    return r.random()\n"),
    (JSON, "semel/sinks/a.py", "import json\nvalue = json.loads('{}')\n"),
    (JSON, "semel/events/encoding/canonical_json.py", "import json\ntext = json.dumps({})\n"),
    (PRINT, "semel/cli/a.py", "print('seed 1')\n"),
    (UNFINISHED, "semel/a.py", "TODOS = ()\n"),
    (IDIOM, "semel/a.py", "recommended = amended = 1\n"),
    (TOLD, "semel/a.py", "def tell(self): ...\n"),
    (IS_NO, "docs/a.md", "There is no server, and where there is none it is no longer asked.\n"),
    (IS_NO, "semel/a.py", "wrong = found is None\n"),
    (SAY, "docs/a.md", "The docs say what it does.\n"),
]


IMPORTS = "from semel.spark.a import x\n"

PLANTED_HOUSES = [
    ("folders", {f"semel/spark/a{at}.py": "" for at in range(FOLDER_FILES_MAX + 1)}),
    ("small files", {"semel/spark/a.py": "x = 1\n", "semel/spark/b.py": IMPORTS}),
    (
        "small files",
        {
            "semel/spark/a.py": "x = 1\n" * (SMALL_FILE_LINES - 1),
            "semel/spark/__init__.py": "if TYPE_CHECKING:\n    from semel.spark import a\n",
        },
    ),
]

CLEAN_HOUSES = [
    ("folders", {f"semel/spark/a{at}.py": "" for at in range(FOLDER_FILES_MAX)}),
    ("small files", {f"semel/spark/{name}.py": IMPORTS for name in "abc"}),
    (
        "small files",
        {"semel/spark/a.py": "x = 1\n" * SMALL_FILE_LINES, "semel/spark/b.py": IMPORTS},
    ),
    (
        "small files",
        {"semel/spark/a/__init__.py": "x = 1\n", "semel/spark/b.py": IMPORTS},
    ),
    ("small files", {"semel/spark/a.py": "x = 1\n"}),
]


def house(files: dict[str, str]) -> list[Source]:
    return [Source(path, text) for path, text in files.items()]


@pytest.mark.parametrize(("rule", "files"), PLANTED_HOUSES)
def test_a_planted_violation_of_the_house_is_found(rule: str, files: dict[str, str]) -> None:
    assert list(HOUSE[rule](house(files)))


@pytest.mark.parametrize(("rule", "files"), CLEAN_HOUSES)
def test_a_house_in_order_is_left_alone(rule: str, files: dict[str, str]) -> None:
    assert not list(HOUSE[rule](house(files)))


def test_every_rule_of_the_house_has_a_planted_violation() -> None:
    assert {rule for rule, _ in PLANTED_HOUSES} == HOUSE.keys()


@pytest.mark.parametrize(("checker", "path", "text"), PLANTED)
def test_a_planted_violation_is_found(checker: str, path: str, text: str) -> None:
    assert list(CHECKERS[checker](Source(path, text)))


@pytest.mark.parametrize(("checker", "path", "text"), CLEAN)
def test_what_is_allowed_is_left_alone(checker: str, path: str, text: str) -> None:
    assert not list(CHECKERS[checker](Source(path, text)))


def test_every_checker_has_a_planted_violation() -> None:
    assert {checker for checker, _, _ in PLANTED} == CHECKERS.keys()


def test_a_finding_names_what_to_do_instead() -> None:
    source = Source("semel/a.py", "import time\n\nnow = time.time()\n")
    assert list(CHECKERS[TIME](source)) == [(3, "time.time: take a Clock")]
