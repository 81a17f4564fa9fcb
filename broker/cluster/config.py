"""Settings of the balancer. Pure."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Of bytes in and out. `thresholds`: bytes a second below which a broker is never busy. `deviations`:
    what above the average is no reason to move anything, of that average. `moves_max`: at a time."""

    thresholds: tuple[float, float]
    deviations: tuple[float, float]
    moves_max: int


@dataclass(frozen=True, slots=True)
class BalancerSettings:
    """`excluded_topics` and `excluded_brokers` stay as they are."""

    is_enabled: bool
    interval_s: float
    report_s: float
    limits: Limits
    excluded_topics: frozenset[str]
    excluded_brokers: frozenset[int]
