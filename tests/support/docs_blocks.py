"""The blocks of code in README and docs, and a reader who runs them in their order."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import typer

from semel.cli.main import app

ROOT = Path(__file__).parents[2]
AT_ROOT = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", ROOT / "SECURITY.md"]
PAGES = sorted(
    [
        *AT_ROOT,
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/sinks/*.md"),
        *ROOT.glob("docs/reference/*.md"),
    ]
)
NAMES = [str(each.relative_to(ROOT)) for each in PAGES]

ON_SPARK = {
    "docs/operating.md": [0, 1, 3],
    "docs/start.md": [0, 1, 2, 3],
    "docs/testing.md": [0, 1, 2, 4],
    "docs/sinks/files.md": [0, 1, 3, 4, 5],
    "docs/sinks/http.md": [0, 1],
    "docs/sinks/kafka.md": [0],
    "docs/sinks/postgres.md": [0, 1, 2, 3],
    "docs/sinks/redis.md": [0, 1, 2, 3, 4],
}
"""The blocks of Python, by number in their page, that tests/spark/test_docs_run.py runs."""

WITHOUT_SPARK = {
    "docs/operating.md": [2],
    "docs/sinks/files.md": [2],
    "docs/streams.md": [0, 1],
    "docs/testing.md": [3],
    "docs/verify-sink.md": [0, 1],
}
"""Those that tests/test_docs.py runs."""

ELSEWHERE = {
    ("README.md", 0): "a part of examples/charges.py, which tests/spark/test_examples.py runs",
    ("docs/own-sink.md", 0): "tests/cli/test_own_sink.py runs it under verify-sink",
    ("docs/streams.md", 2): "tests/spark/test_sources_semel.py reads both sources",
    ("docs/own-store.md", 0): "tests/contract/test_store_contract.py runs it under pytest",
}
"""Those that another test runs, and why."""

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language, and its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, language: str | None = None, *, text: str | None = None) -> list[Block]:
    """Give the blocks of a page in their order, of one language or of all."""
    text = (ROOT / page).read_text() if text is None else text
    found = [
        Block(page, text.count("\n", 0, each.start()) + 1, each[2], each[3])
        for each in _FENCE.finditer(text)
    ]
    return [each for each in found if language is None or each.language == language]


def spans(text: str) -> list[str]:
    """Give what stands in backquotes outside of blocks."""
    return _SPAN.findall(_FENCE.sub("", text))


# -- commands


def typed(block: Block) -> Iterator[str]:
    """Give the commands `semel` of a block: of one with prompts what stands behind them."""
    lines = re.sub(r"\n {4,}(?=[\[-])", " ", block.text).splitlines()
    stripped = [line.strip() for line in lines]
    prompted = [line[2:] for line in stripped if line.startswith("$ ")]
    for line in prompted or stripped:
        if line.removeprefix(".venv/bin/").startswith("semel "):
            yield line


_SAMPLES = {"N": "1000", "SEED": "7", "SECONDS": "0.2", "PARTITIONS": "4"}


def forms(line: str) -> list[list[str]]:
    """Give what a line means as arguments: each of its alternatives, with all that is optional."""
    line = re.sub(r"\[([^\]]*)\](\.\.\.)?", r"\1", line)
    words = shlex.split(line, comments=True)[1:]
    words = words[: words.index(">")] if ">" in words else words  # the shell takes the rest
    choices = [[_SAMPLES.get(word, word)] if "|" not in word else word.split("|") for word in words]
    return [list(each) for each in product(*choices)]


@cache
def root() -> Any:
    """The command `semel`."""
    return typer.main.get_command(app)


def problem(arguments: list[str], command: Any = None) -> Exception | None:
    """Let the real command line parse arguments, and run nothing; give what is wrong with them.
    Another `command` may be asked.
    """
    command = command or root()
    context: Any = None
    name = "semel"
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=context)
            if not hasattr(command, "resolve_command"):
                return None
            left = [*context._protected_args, *context.args]
            name, command, arguments = command.resolve_command(context, left)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what the parser says of wrong arguments
            raise
        return error


def options(*names: str) -> set[str]:
    """Give the options of a command."""
    command = root()
    for name in names:
        command = command.commands[name]
    return {opt for each in command.params for opt in each.opts if opt.startswith("--")} - {
        "--help"
    }


def wrong_commands(page: str, text: str | None = None) -> list[str]:
    """Give the commands of a page that the real command line refuses."""
    text = (ROOT / page).read_text() if text is None else text
    wrong = [
        f"{block}: {line}: {error}"
        for block in blocks(page, "", text=text)
        for line in typed(block)
        for form in forms(line)
        if (error := problem(form)) is not None
    ]
    for span in spans(text):
        if re.match(r"semel [a-z]", span) and "://" not in span:
            error = problem(forms(span)[0])
            # A span in a sentence may leave out what the sentence does not speak of.
            if re.search("No such|xtra argument", str(error)):
                wrong.append(f"{page}: {span}: {error}")
    return wrong


# -- what is printed


def shape(line: str) -> str:
    """Give the fixed part of a printed line: without its numbers, times, short names and widths."""
    line = re.sub(r"\(by [^)]*\)", "(by)", re.sub("━+", "", line))
    line = re.sub(r"@[0-9a-f]{6}", "@", re.sub(r"[\d-]{10}T[\d:]+Z", "TIME", line))
    line = re.sub(r"\bworkers\b", "worker", re.sub(r"\d+(?:[.,] ?\d+)*", "N", line))
    return " ".join(line.split())


# -- Python


@dataclass
class PageReader:
    """Runs the Python blocks of a page in their order, in one namespace.

    `replaced` is what a reader puts in the place of the page's examples: addresses, passwords.
    `names` is what the page says that the reader has. What a block only writes down, a value as a
    statement, is kept in `values`.
    """

    page: str
    replaced: Mapping[str, str] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)
    ran: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names.setdefault("__name__", "__main__")  # functions travel with the task
        self.names["_keep"] = self.values.append

    def run(self, block: Block) -> None:
        """Run one block. Raises what it raises, with its page and line."""
        self.prepared(block)()

    def prepared(self, block: Block) -> Callable[[], None]:
        """Compile a block and give what runs it. A block that another thread is to run is compiled
        first: Python 3.11 cannot parse in two threads at once (it loses count of the depth).
        """
        text = block.text
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        tree = ast.parse(text, str(block))
        ast.increment_lineno(tree, block.line)
        for at, each in enumerate(tree.body):
            if isinstance(each, ast.Expr):
                call = ast.Call(ast.Name("_keep", ast.Load()), [each.value], [])
                tree.body[at] = ast.copy_location(ast.Expr(call), each)
        ast.fix_missing_locations(tree)
        self.ran.append(block)
        code = compile(tree, str(block), "exec")
        return lambda: exec(code, self.names)
