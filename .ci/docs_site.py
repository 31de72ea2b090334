"""What mkdocs needs to build the site from pages that are written for GitHub.

- The pages at the root of the repository (README, CHANGELOG, ...) and the examples become pages
  of the site.
- Links between all of them are rewritten. A link to a file that is not in the site, source code
  for example, becomes its text.
- GitHub indents the content of a list item to where its text begins, Python-Markdown by four
  spaces: lists are indented again.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
AT_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
INDENT = 4

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_MARKER = re.compile(r" *(?:[-*+]|\d+[.)]) +")
_APART = ("bullet_list_open", "ordered_list_open", "table_open")


def examples() -> list[Path]:
    """Give the example programs."""
    return sorted((ROOT / "examples").glob("*.py"))


def site_paths() -> dict[str, str]:
    """Give the page of the site for each path of the repository that has one."""
    docs = [each for each in (ROOT / "docs").rglob("*") if each.is_file()]
    return {
        **AT_ROOT,
        **{
            each.relative_to(ROOT).as_posix(): each.relative_to(ROOT / "docs").as_posix()
            for each in docs
        },
        **{f"examples/{each.name}": f"examples/{each.stem}.md" for each in examples()},
        "examples": "examples/index.md",
    }


def says(example: Path) -> str:
    """Give the docstring of an example."""
    return ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""


def example_page(path: Path) -> str:
    """Give the page of an example: what it shows, then the program."""
    return f"# {path.name}\n\n{says(path)}\n\n```python\n{path.read_text('utf-8')}```\n"


def examples_index() -> str:
    """Give the page that lists the examples."""
    lines = [
        f"- [`{each.name}`](examples/{each.name}): {says(each).partition(chr(10))[0]}"
        for each in examples()
    ]
    return (
        "# Examples\n\nEach is a program that runs as it is, and a test runs it.\n\n"
        + "\n".join(lines)
        + "\n"
    )


# -- links


def with_site_links(text: str, path: str, known: dict[str, str]) -> str:
    """Rewrite the relative links of the page at `path` in the repository to links of the site."""
    here = posixpath.dirname(known[path])

    def rewritten(found: re.Match[str]) -> str:
        label, link = found[1], found[2]
        place, hash_, anchor = link.partition("#")
        if not place or "://" in link or link.startswith("mailto:"):
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), place))
        if target in known:
            return f"[{label}]({posixpath.relpath(known[target], here or '.')}{hash_}{anchor})"
        return label if (ROOT / target).exists() else found[0]

    parts, at = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(rewritten, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, _LINK.sub(rewritten, text[at:])])


# -- lists


def reindented(text: str) -> str:
    """Indent the content of list items by four spaces; put an empty line before lists and tables,
    and between the items of a list that has empty lines.
    """
    lines = text.split("\n")
    items: list[list[int]] = [[] for _ in lines]
    """For each line: the first lines of the list items that it is in, outermost first."""
    apart: set[int] = set()
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.map is None:
            continue
        first, end = token.map
        if token.type == "list_item_open":
            for each in range(first, end):
                items[each].append(first)
            if not all(map(str.strip, "\n".join(lines[first:end]).rstrip().split("\n"))):
                apart |= {first, end}
        elif token.level == 0 and token.type in _APART:
            apart.add(first)
    out: list[str] = []
    starts: dict[int, int] = {}
    """Where in its line the text of a list item begins."""
    for number, line in enumerate(lines):
        if number in apart and out and out[-1].strip():
            out.append("")
        inside = [first for first in items[number] if first != number]
        removed = starts[inside[-1]] if inside else 0
        rest = line[min(removed, len(line) - len(line.lstrip())) :]
        if number in items[number]:
            text_at = _MARKER.match(rest)
            starts[number] = removed + (text_at.end() if text_at else 2)
            rest = rest.lstrip()
        out.append(f"{' ' * INDENT * len(inside)}{rest}" if rest.strip() else "")
    return "\n".join(out)


# -- what mkdocs calls


def on_config(config: Any) -> Any:
    """Put the pages of a directory where the navigation says `DIRECTORY/*`."""
    pages = sorted(each for each in site_paths().values() if each.endswith(".md"))

    def spread(entries: list[Any]) -> list[Any]:
        result: list[Any] = []
        for entry in entries:
            if isinstance(entry, dict):
                result += [
                    {name: spread(value) if isinstance(value, list) else value}
                    for name, value in entry.items()
                ]
            elif entry.endswith("/*"):
                inside = [each for each in pages if posixpath.dirname(each) == entry[:-2]]
                result += sorted(
                    (each for each in inside if not each.endswith("README.md")),
                    key=lambda each: (not each.endswith("index.md"), each),
                )
            else:
                result.append(entry)
        return result

    config.nav = spread(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for source, page in AT_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for each in examples():
        files.append(File.generated(config, f"examples/{each.stem}.md", content=example_page(each)))
    files.append(File.generated(config, "examples/index.md", content=examples_index()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links and lists of a page."""
    known = site_paths()
    [path] = [path for path, site in known.items() if site == page.file.src_uri]
    return reindented(with_site_links(markdown, path, known))
