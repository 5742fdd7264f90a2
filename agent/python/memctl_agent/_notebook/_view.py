"""Writes what was measured, as HTML for a notebook and as text for a terminal.

The HTML has inline styles alone, and no colours of its own: it is the same in Jupyter, VS Code and Colab, on a light
and on a dark page.
Guarantees: all text is escaped, nothing is loaded from elsewhere, and objects of this module have only texts and
numbers.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field

_BOX = "font-size:13px;line-height:1.5;margin:4px 0;padding:4px 10px;border-left:3px solid rgba(128,128,128,.6)"
_CELL = "padding:1px 16px 1px 0;border:0;background:none;vertical-align:top"
_AMOUNT = f"{_CELL};text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_TEXT = f"{_CELL};text-align:left"


@dataclass
class Row:
    """Blocks of one line: their amount, their number, the line, and what holds them."""

    amount: str
    blocks: int
    line: str
    holders: list[str] = field(default_factory=list)


@dataclass
class View:
    """A sentence, and below it figures (name and value), rows with lines, and notes."""

    sentence: str
    figures: list[tuple[str, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        lines = [f"memctl: {self.sentence}"]
        width = max((len(name) for name, _ in self.figures), default=0)
        lines += [f"  {name:<{width}}  {value}" for name, value in self.figures]
        for row in self.rows:
            lines.append(f"{row.amount:>12} in {blocks(row.blocks)}  {row.line}")
            lines += [f"{'':14}held by: {text}" for text in row.holders]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [f'<div style="{_BOX}"><div><b>memctl</b>: {html.escape(self.sentence)}</div>']
        if self.figures:
            cells = "".join(
                f'<tr style="background:none"><td style="{_TEXT}">{html.escape(name)}</td>'
                f'<td style="{_AMOUNT}">{html.escape(value)}</td></tr>'
                for name, value in self.figures
            )
            parts.append(f'<table style="border:0;margin:2px 0">{cells}</table>')
        if self.rows:
            parts.append(f'<table style="border:0;margin:2px 0">{"".join(map(_row, self.rows))}</table>')
        parts += [f"<div>{html.escape(note)}</div>" for note in self.notes]
        return "".join([*parts, "</div>"])


def _row(row: Row) -> str:
    holders = "".join(f'<div style="opacity:.8">held by: {html.escape(text)}</div>' for text in row.holders)
    return (
        f'<tr style="background:none"><td style="{_AMOUNT}">{html.escape(row.amount)}</td>'
        f'<td style="{_AMOUNT}">{blocks(row.blocks)}</td>'
        f'<td style="{_TEXT}"><code style="background:none">{html.escape(row.line)}</code>{holders}</td></tr>'
    )


def blocks(count: int) -> str:
    """A number of blocks: `1 block`, `1,200 blocks`."""
    return f"{count:,} block{'' if count == 1 else 's'}"


@dataclass
class Page:
    """A whole HTML document within the notebook, in a frame of its own that cannot reach the notebook."""

    document: str
    title: str
    height: int
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:1px solid rgba(128,128,128,.4)"
        title, document = html.escape(self.title), html.escape(self.document)
        frame = f'<iframe title="{title}" sandbox="allow-scripts" style="{style}" srcdoc="{document}"></iframe>'
        return f"<div>{frame}</div>"


def show(view: object) -> None:
    """Displays it in the notebook. In a terminal, the text is printed."""
    from IPython.display import display  # pyright: ignore[reportMissingImports]

    display(view)
