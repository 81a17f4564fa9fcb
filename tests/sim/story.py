"""What happened in a run, for people: its lives, strikes and weather, and what led up to the first finding.

Told from the lines of the trace, which are numbers and short words. Not all of it is told: `python -m
tests.sim one PLAN --lines` gives the trace itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.sim.loop import START_US
from tests.sim.node import point_of

LEAD_COUNT = 25  # events before a finding


def tell(lines: Sequence[str]) -> list[str]:
    """The events that matter, in order, in words; the last few before the first finding with their
    details."""
    first = next((place for place, line in enumerate(lines) if line.split(" ")[1] == "finding"), len(lines))
    details = [place for place in range(first) if _is_detail(lines[place])][-LEAD_COUNT:]
    shown = sorted({*details, *(place for place, line in enumerate(lines) if _is_turning_point(line))})
    return [told for place in shown for told in _told(lines[place])][-4 * LEAD_COUNT :]


def _is_turning_point(line: str) -> bool:
    _, actor, what = line.split(" ", 2)
    return actor in ("weather", "finding") or what.split(" ")[0] in (
        "start",
        "ready",
        "down",
        "stop",
        "strike",
        "rot",
        "lost-answer",
    )


def _is_detail(line: str) -> bool:
    _, actor, what = line.split(" ", 2)
    return actor != "net" and what.split(" ")[0] in ("disk", "store", "command")


def _told(line: str) -> Iterator[str]:
    time_us, actor, what = line.split(" ", 2)
    words = what.split(" ")
    at = f"{(int(time_us) - START_US) / 1000:10.2f} ms  "
    if actor == "finding":
        yield f"{at}FOUND {what}"
    elif actor == "weather":
        yield f"{at}{what}"
    elif words[0] == "strike":
        yield f"{at}{actor}: {' '.join(words[1:])}"
    elif words[0] == "start":
        yield f"{at}{actor} starts, life {words[1]}"
    elif words[0] == "ready":
        yield f"{at}{actor} serves"
    elif words[0] == "stop":
        yield f"{at}{actor} is told to stop"
    elif words[0] == "down":
        yield f"{at}{actor} is gone{f', by itself: {words[2]}' if len(words) > 2 and words[2] else ''}"
    elif words[0] == "lost-answer":
        yield f"{at}{actor}: {words[1]} is carried out, and its answer lost"
    elif words[0] == "rot":
        yield f"{at}{actor}: a byte of {words[1]} at {words[2]} is wrong"
    elif words[0] == "disk":
        yield f"{at}{actor} writes {_of_disk(words)}"
    elif words[0] == "command":
        yield f"{at}{actor} controller: {' '.join(words[1:])}"
    elif words[0] == "store":
        yield f"{at}{actor} store: {' '.join(words[2:])}"


def _of_disk(words: list[str]) -> str:
    if len(words) < 7:
        return " ".join(words[1:])
    point = point_of("write", tuple(words[1:]))
    return (
        f"{point}: {words[2]} {words[3].rpartition('/')[2]} at {words[4]}, {words[5]} bytes (write "
        f"{words[1]} of this life)"
    )
