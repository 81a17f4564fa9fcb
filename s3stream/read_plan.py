"""Which blocks of one object come with one GET. Pure.

Blocks that lie side by side are one range; so are blocks with something between that nobody asked for, as
long as that is at most half of what comes: a request costs more than some bytes too many. A GET is at most
`bytes_max`, unless one block alone is larger.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.s3stream.objects.format import BlockRef

WASTE_PART = 2  # at most one in so many bytes


def plan_gets(refs: Iterable[BlockRef], bytes_max: int) -> list[list[BlockRef]]:
    """Runs in the order of their positions, each to be read from the start of its first block to the end of
    its last."""
    runs: list[list[BlockRef]] = []
    start = end = wasted = 0
    for ref in sorted(refs, key=_position_of):
        ref_end = ref.position + ref.size_bytes
        gap = ref.position - end
        if runs and ref_end - start <= bytes_max and WASTE_PART * (wasted + gap) <= ref_end - start:
            runs[-1].append(ref)
            wasted += gap
        else:
            runs.append([ref])
            start, wasted = ref.position, 0
        end = ref_end
    return runs


def _position_of(ref: BlockRef) -> int:
    return ref.position
