"""The tables and tiles of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def draw_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column holds names and whose others hold numbers. Cells are HTML."""

    def draw_row(cells: Sequence[str], tag: str) -> str:
        first, *numbers = cells
        return (
            f"<tr><{tag}>{first}</{tag}>"
            + "".join(f'<{tag} class="number">{cell}</{tag}>' for cell in numbers)
            + "</tr>"
        )

    return "<table>" + draw_row(header, "th") + "".join(draw_row(row, "td") for row in rows) + "</table>"


def draw_tiles(tiles: Iterable[tuple[str, str, str]]) -> str:
    """Figures in large letters, side by side: of each the name, the value and a note, as HTML."""
    cells = "".join(f"<div><span>{name}</span><b>{value}</b><span>{note}</span></div>" for name, value, note in tiles)
    return f'<div class="tiles">{cells}</div>'
