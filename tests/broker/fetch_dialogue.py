"""A Fetch's course in conversation: what transcripts say to its machine and how they print what comes back.
Nothing is awaited; time is a number.

fetch min=100 max=1000 wait=500ms     a new request, whose first pass is due; the clock begins when that pass
                                      is over
pass [openings] [remote] [error] [bytes=N] [heard=N] [interrupted]
                                      a read pass found so much, or what has to be opened or read first; in
                                      slices: what came meanwhile
opened [late]                         partitions are open, or some are not in time
remote [error] [bytes=N] [heard=N] [interrupted]
                                      a remote read is over
satisfied / expired / abandoned / failed
time 5s                               so late it is
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millrace.broker.requests.fetch_machine import FetchEffect, FetchMachine, FetchState


@dataclass
class Pass:
    """What a pass found."""

    max_bytes: int
    openings: list[Any] = field(default_factory=list)
    remote: list[Any] = field(default_factory=list)
    is_urgent: bool = False
    counted_bytes: int = 0


class FetchDialogue:
    def __init__(self) -> None:
        self.max_bytes = 0
        self.now_s = 0.0
        self.machine = FetchMachine(0, False)

    def say(self, line: str) -> list[str]:
        """What the machine does of it: the state, and the effect."""
        name, *words = line.split()
        values = dict(word.split("=", 1) for word in words if "=" in word)
        effect = getattr(self, f"say_{name}")(words, values)
        state = self.machine.state
        missing = f" for {self.machine.missing_bytes}" if effect is FetchEffect.DELAY else ""
        assert (state is FetchState.DELAYED) or effect is not FetchEffect.DELAY
        return [f"{self.machine!r}: {'-' if effect is None else effect.name.lower()}{missing}"]

    def say_fetch(self, words: list[str], values: dict[str, str]) -> None:
        wait_s = seconds(values.get("wait", "500ms"))
        self.max_bytes, self.now_s = int(values.get("max", 1000)), 0.0
        self.machine = FetchMachine(min(int(values.get("min", 1)), self.max_bytes), wait_s <= 0)
        self.machine.deadline_s = wait_s

    def say_time(self, words: list[str], values: dict[str, str]) -> None:
        self.now_s = seconds(words[0])

    def found(self, words: list[str], values: dict[str, str]) -> Pass:
        max_bytes = int(values.get("max", self.max_bytes))
        found = Pass(max_bytes, is_urgent="error" in words, counted_bytes=int(values.get("bytes", 0)))
        found.openings = [1] if "openings" in words else []
        found.remote = [1] if "remote" in words else []
        return found

    def say_pass(self, words: list[str], values: dict[str, str]) -> FetchEffect:
        return self.machine.on_pass(
            self.found(words, values), int(values.get("heard", 0)), "interrupted" in words
        )

    def say_opened(self, words: list[str], values: dict[str, str]) -> FetchEffect:
        return self.machine.on_opened(self.now_s, is_late="late" in words)

    def say_remote(self, words: list[str], values: dict[str, str]) -> FetchEffect:
        heard_bytes, is_interrupted = int(values.get("heard", 0)), "interrupted" in words
        return self.machine.on_remote_read(self.found(words, values), self.now_s, heard_bytes, is_interrupted)

    def say_satisfied(self, words: list[str], values: dict[str, str]) -> FetchEffect:
        return self.machine.on_satisfied()

    def say_expired(self, words: list[str], values: dict[str, str]) -> FetchEffect:
        return self.machine.on_expired()

    def say_abandoned(self, words: list[str], values: dict[str, str]) -> FetchEffect:
        return self.machine.on_abandoned()

    def say_failed(self, words: list[str], values: dict[str, str]) -> FetchEffect:
        return self.machine.on_failed()


def seconds(text: str) -> float:
    return int(text[:-2]) / 1000 if text.endswith("ms") else float(text.removesuffix("s"))
