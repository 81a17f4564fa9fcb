"""Prices of requests: S3 Standard's first tier, in dollars. An example to compare with."""

from __future__ import annotations

DOLLARS_A_PUT = 0.005 / 1000
DOLLARS_A_GET = 0.0004 / 1000
