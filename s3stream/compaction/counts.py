"""What compaction did, for /metrics and for whoever asks whether it is worth it. Pure."""

from __future__ import annotations

from dataclasses import field

from millrace.protocol.dataclass import dataclass

# Why a round ended early, or an object was left out.
SKIP_REASONS = (
    "unreadable",
    "unanswered",
    "overlap",
    "uncovered",
    "too many links",
    "refused",
    "expired",
    "store",
)


@dataclass(slots=True)
class CompactionCounts:
    """`skipped` by one of SKIP_REASONS."""

    set_rounds: int = 0
    stream_rounds: int = 0
    reclaim_rounds: int = 0
    commits: int = 0
    objects_in: int = 0
    objects_out: int = 0
    gets: int = 0
    read_bytes: int = 0
    puts: int = 0
    written_bytes: int = 0
    composites: int = 0
    damaged_blocks: int = 0  # carried over as they are
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        assert reason in SKIP_REASONS, reason
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
