"""Tables for notebooks: what objects of semel are shown as in Jupyter (`_repr_html_`).

Always true:
- every text is escaped, and what cannot be seen is written as `\\xNN`;
- colours are those of the notebook, so that it is readable on a light and on a dark ground;
- there is no script, no link and no file.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LINE = "border:1px solid rgba(128,128,128,0.5);padding:3px 8px;vertical-align:top;color:inherit;"
_TABLE = "border-collapse:collapse;background:transparent;color:inherit;margin:4px 0;"
TEXT_MAX = 2_000


def cell_text(value: object) -> str:
    """Return a value as escaped text; nothing of it is markup. None is `-`."""
    text = "-" if value is None else f"{value:,}" if _is_count(value) else str(value)
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}..."
    seen = "".join(
        each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text
    )
    return html.escape(seen).replace("\n", "<br>")


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    notes: Iterable[str] = (),
) -> str:
    """Return a table; numbers stand on the right."""
    head = "".join(
        f'<th scope="col" style="{LINE}text-align:left">{cell_text(each)}</th>' for each in headings
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    below = "".join(f"<div>{cell_text(each)}</div>" for each in notes)
    return (
        f'<div style="color:inherit"><div><b>{cell_text(caption)}</b></div>'
        f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"{below}</div>"
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _cell(value: object) -> str:
    side = "right" if isinstance(value, int | float) and not isinstance(value, bool) else "left"
    return f'<td style="{LINE}text-align:{side}">{cell_text(value)}</td>'
