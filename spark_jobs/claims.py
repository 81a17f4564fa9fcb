"""Who drives a checkpoint, as small files in it say: docs/formats/pipeline_binding.md draws them. Pure.

A driver that wants the checkpoint waits until every claim there is over (given back, its process is gone, or
not renewed while it was watched), writes one of the next epoch under a name of its own, then looks again. It
has the checkpoint if all is as it was judged; else it takes its claim away and begins anew. A driver that has
it writes its claim anew, then looks: one of a higher epoch means that it was taken. Of two drivers the one
that looks later sees what the other wrote, so they never both go on; all that is asked of the storage is that
a listing has what was written before it. Clocks of two machines are never compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from millrace.spark_jobs.processes import Process

CLAIMS = "_millrace_drivers"  # the folder, in the checkpoint
Found = Mapping[str, str]  # by the claim's name, what it holds
IsRunning = Callable[[Process], bool | None]


@dataclass(frozen=True)
class Claim:
    process: Process
    renewals: int = 0
    is_given_back: bool = False


@dataclass(frozen=True)
class View:
    """`held`: a name for each claim that is not over; `is_alive`: one of them surely belongs to a driver that
    runs."""

    held: tuple[str, ...]
    is_alive: bool


def claim_name(epoch: int, owner: str) -> str:
    return f"{epoch:08d}-{owner}"


def epoch_of(name: str) -> int:
    """0 of what is no claim."""
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def newest_epoch(names: Iterable[str]) -> int:
    return max(map(epoch_of, names), default=0)


def encode_claim(claim: Claim) -> str:
    return json.dumps(asdict(claim), sort_keys=True) + "\n"


def decode_claim(text: str) -> Claim | None:
    """None of one that is being written, or of a later version: it may be renewed, and expires when it is
    not."""
    try:
        found = json.loads(text)
        return Claim(Process(**found["process"]), int(found["renewals"]), found["is_given_back"] is True)
    except (ValueError, KeyError, TypeError):
        return None


class Watch:
    """What one driver saw of the claims, by its own clock."""

    def __init__(self, expires_s: float) -> None:
        self._expires_s = expires_s
        self._since: dict[str, tuple[str, float]] = {}  # by name: what it holds, and when that was seen first

    def look(self, found: Found, now: float, is_running: IsRunning) -> View:
        held, is_alive = [], False
        for name in sorted(found):
            text, (seen, since) = found[name], self._since.get(name, ("", now))
            has_changed = name in self._since and text != seen
            self._since[name] = (text, now if has_changed else since)
            claim = decode_claim(text)
            if claim and claim.is_given_back:
                continue
            runs = is_running(claim.process) if claim else None
            if runs is False or (runs is None and not has_changed and now - since >= self._expires_s):
                continue
            held.append(f"process {claim.process.pid} on {claim.process.host}" if claim else name)
            is_alive = is_alive or bool(runs) or has_changed
        return View(tuple(held), is_alive)
