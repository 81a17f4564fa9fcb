"""How the controllers of a run are set, by the variants that its plan names.

Usual are thresholds so small that snapshots, trimmed logs and installs happen in nearly every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millrace.kraft.config import ControllerSettings, Ticks
from millrace.runtime.rand import Rand

TICK_MS = 50
USUAL = ControllerSettings(
    "/data",
    0,
    group_bytes_max=2_000,
    segment_bytes=2_500,
    snapshot_records=25,
    snapshot_bytes=20_000,
    snapshot_records_at_close=15,
    reserve_bytes=4_096,
    expiry_interval_ms=200,
    wall_jump_max_ms=2_000,
)
VARIANTS = {
    "a command a batch": {"group_bytes_max": 1},
    "large batches": {"group_bytes_max": 1 << 20},
    "tiny segments": {"segment_bytes": 800},
    "one segment": {"segment_bytes": 1 << 30},
    "snapshots all the time": {"snapshot_records": 6},
    "snapshots by size": {"snapshot_records": 1 << 30, "snapshot_bytes": 3_000},
    "few snapshots": {"snapshot_records": 150, "snapshot_bytes": 1 << 30},
}


def node_settings(
    node_id: int,
    voters: tuple[int, ...],
    variants: Sequence[str],
    rand: Rand,
    node_ids: Sequence[int] = (),
    *,
    is_dynamic: bool = False,
) -> ControllerSettings:
    """Each node's ticks are its own, some per cent beside the others'."""
    settings = replace(USUAL, node_id=node_id, voters=voters, ticks=Ticks(TICK_MS - 3 + rand.below(7)))
    if is_dynamic:
        everybody = tuple((f"node-{one}", one) for one in node_ids)
        settings = replace(settings, voters=(), is_dynamic=True, bootstrap_servers=everybody)
    for name in variants:
        settings = replace(settings, **VARIANTS[name])  # type: ignore[arg-type]
    return settings
