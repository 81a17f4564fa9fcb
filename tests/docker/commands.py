"""Commands run, and what is told of them while they do: a line when a step begins, and one with its seconds
when it ends."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

TOLD_LINES = 40
NOTHING = re.compile(r"(?!)")


class Failed(Exception):
    """What was wrong, in the words of whom it happened to."""


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Says that `what` goes on, then for how long it did."""
    began = time.monotonic()
    say(f"{what} ...")
    yield
    say(f"  {time.monotonic() - began:.1f} s")


def run(
    words: Sequence[str],
    env: Mapping[str, str] | None = None,
    shown: re.Pattern[str] = NOTHING,
    codes: Sequence[int] = (0,),
) -> str:
    """What the command printed on its standard output, but its errors' last lines only when it fails. Lines
    that `shown` finds are printed as they come. Raises Failed for any exit code but those of `codes`."""
    whole = {**os.environ, **(env or {})}
    stderr = subprocess.PIPE if shown is NOTHING else subprocess.STDOUT
    with subprocess.Popen(
        words, env=whole, stdout=subprocess.PIPE, stderr=stderr, text=True, errors="replace"
    ) as child:
        try:
            out, errors = (
                child.communicate() if shown is NOTHING else ("".join(_shown_lines(child, shown)), "")
            )
        except BaseException:  # a signal to us: nothing goes on without us
            child.kill()
            raise
    if child.returncode not in codes:
        tail = "\n".join(deque((out + errors).splitlines(), TOLD_LINES))
        raise Failed(f"exit code {child.returncode} of: {' '.join(words)}\n{tail}")
    return out


def _shown_lines(child: subprocess.Popen[str], shown: re.Pattern[str]) -> Iterator[str]:
    assert child.stdout is not None
    for line in child.stdout:
        if shown.search(line):
            say(f"  {line.rstrip()}")
        yield line


def succeeds(words: Sequence[str], env: Mapping[str, str] | None = None) -> bool:
    whole = {**os.environ, **(env or {})}
    try:
        return subprocess.run(words, env=whole, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
