"""docs/raft-claims.md names tests and transcripts: they are there, and every transcript is named."""

from __future__ import annotations

import re

from tests.test_past_bugs import ROOT, names_in

PAGE, TRANSCRIPTS = ROOT / "docs" / "raft-claims.md", ROOT / "tests" / "transcripts" / "raft"


def test_every_claim_has_a_test_that_exists() -> None:
    """A test's module and name, or a transcript's; and nothing else stands in the cell."""
    lines = [line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [cells for cells in lines if cells[0].strip() != "claim"]
    wrong: list[str] = []
    for claim, shown in rows:
        tests = re.findall(r"`([\w/]+\.py)::(test_\w+)`", shown)
        transcripts = re.findall(r"`(\w+\.txt)`", shown)
        if shown.count("`") != 2 * (len(tests) + len(transcripts)) or not (tests or transcripts):
            wrong.append(f"no test: {claim}")
        wrong += [f"no transcript {name}" for name in transcripts if not (TRANSCRIPTS / name).is_file()]
        for name, test in tests:
            path = ROOT / "tests" / name
            if not path.is_file() or test not in names_in(path):
                wrong.append(f"no test {name}::{test}")
    assert wrong == []
    assert len(rows) > 20


def test_every_transcript_shows_a_claim() -> None:
    text = PAGE.read_text()
    assert [path.name for path in sorted(TRANSCRIPTS.glob("*.txt")) if f"`{path.name}`" not in text] == []
