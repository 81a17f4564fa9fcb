"""docs/formats as a stranger reads them: tables by their headings, and a reader of records that knows what
the tables say and no more."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

FORMATS = Path(__file__).parent.parent / "docs" / "formats"
STRUCTURES = {"MadeObject": "#### MadeObject"}
Row = dict[str, str]


@cache
def page(name: str) -> str:
    return (FORMATS / name).read_text()


@cache
def rows_under(heading: str, text: str) -> list[Row]:
    """The first table behind a heading, each row by the names of its columns."""
    lines = text[text.index(f"\n{heading}\n") :].split("\n")[2:]
    table: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            table.append([cell.strip().strip("`") for cell in line.strip("|").split(" |")])
        elif table or line.startswith("#"):
            break
    return [dict(zip(table[0], cells, strict=True)) for cells in table[2:]] if table else []


class PageReader:
    """Reads a value by the page alone: its envelope, its tables, its types."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, size: int, is_signed: bool = True) -> int:
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "big", signed=is_signed)

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1, is_signed=False)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def raw(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def field(self, type_name: str) -> Any:
        if type_name.endswith("[]"):
            return [self.field(type_name[:-2]) for _ in range(self.uvarint() - 1)]
        if type_name in STRUCTURES:
            return self.structure(STRUCTURES[type_name])
        if type_name == "bytes":
            return self.raw(self.uvarint() - 1)
        if type_name == "string":
            return self.raw(self.uvarint() - 1).decode()
        if type_name == "uuid":
            return self.raw(16)
        return (
            bool(self.number(1))
            if type_name == "bool"
            else self.number({"i8": 1, "i32": 4, "i64": 8}[type_name])
        )

    def structure(self, heading: str) -> dict[str, Any]:
        rows = rows_under(heading, page("metadata_log.md"))
        found = {row["field"]: self.field(row["type"]) for row in rows if not row.get("tag")}
        by_tag = {int(row["tag"]): row for row in rows if row.get("tag")}
        found |= {row["field"]: int(row["absent"]) for row in by_tag.values()}
        for _ in range(self.uvarint()):
            row = by_tag[self.uvarint()]
            end = self.uvarint() + self.at
            found[row["field"]] = self.field(row["type"])
            assert self.at == end, row
        return found
