"""Tables and sizes as commands print them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines with columns aligned: numbers to the right, words to the left."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    is_number = [bool(cells) and all(_is_number(row[place]) for row in cells) for place in range(len(head))]

    def line(row: Sequence[str]) -> str:
        shown = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        return "  ".join(shown).rstrip()

    return [line(list(head)), *map(line, cells)]


def _is_number(cell: str) -> bool:
    return not cell.strip("-.,0123456789") or cell.endswith(("KiB", "MiB", "GiB", " B"))


def size_text(size_bytes: int) -> str:
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError(size_bytes)


def counted(count: int, noun: str) -> str:
    """`1 object`, `2 objects`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
