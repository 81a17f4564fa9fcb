"""Claims of ownership by series: which incarnations of a node this metadata log knows to have claimed which
number.

An incarnation is recorded here before it puts its claim into the bucket, so that after a crash between the
two the node knows its own claim when it finds it there. A bucket whose newest claim is not in this table was
claimed by somebody whose metadata log is newer, or another copy. Not here: the bucket. Kept true: a series
keeps the claims of its two highest numbers, `CLAIMS_MAX` at most, the oldest go first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.kraft.tables.sorted_map import SortedMap
from millrace.protocol.dataclass import dataclass

CLAIMS_MAX: Final = 64  # of one series: starts that ended between the record and the claim
METADATA_SERIES: Final = -1  # the metadata log's writer; other series are node ids


@dataclass(frozen=True, slots=True)
class Claim:
    number: int
    incarnation: bytes  # 16 bytes, drawn at the start that made it


@dataclass(frozen=True, slots=True)
class NodeClaims:
    by_series: SortedMap[int, tuple[Claim, ...]]

    def of(self, series: int) -> tuple[Claim, ...]:
        """Oldest first; empty where none was ever made."""
        return self.by_series.get(series) or ()

    def is_known(self, series: int, claim: Claim) -> bool:
        return claim in self.of(series)

    def has_incarnation(self, series: int, incarnation: bytes) -> bool:
        """It claimed some number of the series, or meant to: the release that it puts has a higher one."""
        return any(known.incarnation == incarnation for known in self.of(series))

    def highest(self, series: int) -> int:
        """The highest number that anybody here has meant to claim; 0 for none."""
        return max((known.number for known in self.of(series)), default=0)

    def __iter__(self) -> Iterator[tuple[int, Claim]]:
        for series, claims in self.by_series.items():
            for claim in claims:
                yield series, claim

    def with_claim(self, series: int, claim: Claim) -> NodeClaims:
        before = [known for known in self.of(series) if known.number >= claim.number - 1 and known != claim]
        edit = self.by_series.edit()
        edit[series] = (*before, claim)[-CLAIMS_MAX:]
        return NodeClaims(edit.done())


NO_NODE_CLAIMS = NodeClaims(SortedMap())
