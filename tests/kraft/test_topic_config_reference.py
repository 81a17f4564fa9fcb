"""The page of topic configurations."""

from __future__ import annotations

from pathlib import Path

from millrace.kraft.topic_config_reference import topic_reference
from millrace.kraft.topic_configs import TOPIC_CONFIGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "topic-configs.md"


def test_the_page_is_current() -> None:
    """docs/topic-configs.md is what `millrace settings --topics` prints, and names every configuration
    once."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == topic_reference(), "run: millrace settings --topics > docs/topic-configs.md"
    assert all(page.count(f"\n| `{name}` |") == 1 for name in TOPIC_CONFIGS)
