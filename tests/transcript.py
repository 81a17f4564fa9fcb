"""Machines that decide, shown as dialogues: tests/transcripts/KIND/*.txt, rewritten with MILLRACE_REWRITE=1
and read as a diff.

A line that begins with `> ` is a command; what follows it indented is what it printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "transcripts"
PROMPT = "> "
Say = Callable[[str], Iterable[str]]


def transcripts(kind: str) -> list[Path]:
    return sorted((FOLDER / kind).glob("*.txt"))


def commands(path: Path) -> Iterator[str]:
    return (line.removeprefix(PROMPT) for line in path.read_text().splitlines() if line.startswith(PROMPT))


def performed(text: str, say: Say) -> str:
    """The transcript with what is printed now in place of what is printed there."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("  "):
            lines.append(line)
        if line.startswith(PROMPT):
            lines += [f"  {said}" for said in say(line.removeprefix(PROMPT))]
    return "\n".join(lines) + "\n"


def check(path: Path, say: Say) -> None:
    """Every command prints what the transcript says."""
    text = path.read_text()
    found = performed(text, say)
    if os.environ.get("MILLRACE_REWRITE"):
        path.write_text(found)
        text = found
    assert found == text
