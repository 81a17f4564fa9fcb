"""The table that a benchmark prints: figure, what stands beside it, target, verdict."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cpu import cpu_seconds

HEAD = ("what", "figure", "beside it", "target", "")


@dataclass
class Row:
    """`is_met` is None for a figure without a target; `is_known`: docs/PERFORMANCE.md says that it is not
    met."""

    what: str
    figure: str
    beside: str = ""
    target: str = ""
    is_met: bool | None = None
    is_known: bool = False

    @property
    def verdict(self) -> str:
        if self.is_met is None:
            return ""
        return "met" if self.is_met else "MISSED, as docs/PERFORMANCE.md says" if self.is_known else "MISSED"


def exit_code(rows: Iterable[Row]) -> int:
    """Of a benchmark's process: 1 when a target was missed, known or not."""
    return int(any(row.is_met is False for row in rows))


def table(rows: list[Row]) -> str:
    cells = [HEAD, *((row.what, row.figure, row.beside, row.target, row.verdict) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


class OthersCpu:
    """What the rest of the machine used of its processors: a benchmark beside a busy neighbour is read with
    that in mind."""

    def __init__(self, own_pids: list[int]) -> None:
        self._pids = own_pids
        self._busy, self._all = self._machine()
        self._own = self._ours()

    def percent(self) -> float:
        """Of all processors, since the start, by processes that are not ours (and by the machine's host, as
        stolen time)."""
        busy, everything = self._machine()
        spent = everything - self._all
        return 100 * max(0.0, busy - self._busy - (self._ours() - self._own)) / spent if spent else 0.0

    def _machine(self) -> tuple[float, float]:
        numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        idle = numbers[3] + numbers[4]
        ticks = os.sysconf("SC_CLK_TCK")
        return (sum(numbers) - idle) / ticks, sum(numbers) / ticks

    def _ours(self) -> float:
        found = 0.0
        for pid in (os.getpid(), *self._pids):
            try:
                found += cpu_seconds(pid)
            except OSError:
                continue
        return found
