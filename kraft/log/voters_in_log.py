"""Whether a metadata log directory is one of a quorum whose voters stand in its log (kraft.version 1): by
what it was formatted with, or its quorum-state, which is of version 1 then. For the settings, before anything
is opened.

Not here: what it holds (kraft/recovery.py). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

FILES: Final = "__cluster_metadata-0"
FIRST_CHECKPOINT: Final = f"{'0' * 20}-{'0' * 10}.checkpoint"


def has_voters_in_log(log_dir: str, read: Callable[[str], str | None]) -> bool:
    """`read` gives a file's text, None where there is none that can be read."""
    state = read(f"{log_dir}/{FILES}/quorum-state")
    if state is None:  # as Kafka's tool leaves it
        return read(f"{log_dir}/{FILES}/{FIRST_CHECKPOINT}") is not None
    try:
        found = json.loads(state)
        return isinstance(found, dict) and int(found.get("data_version", 0)) >= 1
    except (ValueError, TypeError):
        return False  # what opens the log says what is wrong with it
