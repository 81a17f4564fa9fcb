"""Settings of the balancer. Pure."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`thresholds`: bytes a second, in and out, below which a broker is never busy. `moves_max`: at a
    time."""

    thresholds: tuple[float, float]
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
