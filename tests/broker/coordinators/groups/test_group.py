"""Classic groups, as dialogues in tests/transcripts/groups (transcript.py), by the commands of
dialogue.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import transcript
from tests.broker.coordinators.groups.dialogue import Dialogue

TRANSCRIPTS = transcript.transcripts("groups")


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    transcript.check(path, Dialogue().say)


def test_there_are_transcripts() -> None:
    """The folder is found, and nothing of it was lost."""
    assert len(TRANSCRIPTS) >= 12
