"""Classic groups, as dialogues: tests/transcripts/groups/*.txt, rewritten with MILLRACE_REWRITE=1 and read as a diff.

A line that begins with `>` is a command of dialogue.py, what follows indented is what it printed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.broker.coordinators.dialogue import Dialogue

FOLDER = Path(__file__).parent.parent.parent / "transcripts" / "groups"
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))


def performed(text: str) -> str:
    """The transcript with what is printed now in place of what is printed there."""
    dialogue = Dialogue()
    lines = []
    for line in text.splitlines():
        if not line.startswith("  "):
            lines.append(line)
        if line.startswith("> "):
            lines += [f"  {said}" for said in dialogue.say(line[2:])]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """Every command of the dialogue prints what the transcript says."""
    text = path.read_text()
    found = performed(text)
    if os.environ.get("MILLRACE_REWRITE"):
        path.write_text(found)
        text = found
    assert found == text


def test_there_are_transcripts() -> None:
    """The folder is found, and nothing of it was lost."""
    assert len(TRANSCRIPTS) >= 12
