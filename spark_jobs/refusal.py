"""Ends of a pipeline that the operator can do something about, each one sentence and an exit code."""

from __future__ import annotations

FAILED = 1  # not foreseen; --trace shows what Spark and Kafka say
# the configuration, the checkpoint, the table and the topics do not fit; the same start is refused again
REFUSED = 2
UNREACHABLE = 3  # the brokers were not reached; the same start may do


class Refused(RuntimeError):
    exit_code = REFUSED


class Unreachable(Refused):
    exit_code = UNREACHABLE


class Stopped(Exception):
    """A signal came while something was waited for."""
