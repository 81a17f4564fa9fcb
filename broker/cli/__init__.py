"""The commands of `millrace`, one file each, imported when they are run: `millrace --help` loads none of
them.

Arguments and environment come in from broker/__main__.py, and so does the loop that an asynchronous command
runs on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib import import_module
from typing import Any

RunLoop = Callable[[Coroutine[Any, Any, int]], int]

# name -> what `millrace --help` says; the module of that name has run(words, env, run_loop) -> exit code.
COMMANDS = {
    "serve": "run a node: broker and controller",
    "cluster": "start a cluster on this machine; look at one, move its partitions",
    "format": "make a log directory one of a quorum whose voters come and go",
    "test": "run a command with a broker of its own: millrace test -- npm test",
    "dev": "serve a broker to try things out; nothing is kept",
    "pipeline": "run a Spark pipeline over the topics",
    "doctor": "try whether a bucket is fit for a broker",
    "fsck": "check a bucket against its metadata",
    "restore": "build a lost log directory from the bucket",
    "objects": "what is stored in the bucket",
    "streams": "which objects hold which stream",
    "clock": "what a node knows of the time; confirm this machine's clock",
    "wal": "what a WAL holds, and whether it is sound",
    "settings": "print the reference of all settings",
}


def usage() -> str:
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: millrace COMMAND [OPTIONS]",
            "",
            "A Kafka-wire-compatible broker whose durable store is an object store.",
            "",
            *lines,
            "",
            "millrace COMMAND --help says more; millrace --version prints the version.",
        ]
    )


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    """Runs one command; its exit code. 2 stands for a mistake in what was asked."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("-V", "--version", "version"):
        from millrace.broker.version import VERSION

        print(f"millrace {VERSION}")
        return 0
    if words[0] not in COMMANDS:
        print(f"millrace: there is no command {words[0]!r}{_near(words[0])}\n\n{usage()}", file=sys.stderr)
        return 2
    from millrace.runtime.process import loading

    with loading():
        command = import_module(f"millrace.broker.cli.{words[0]}")
    return int(command.run(words[1:], env, run_loop))


def _near(word: str) -> str:
    """The command that was meant, if one is much like it."""
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, n=1)
    return f"; did you mean {near[0]}?" if near else ""
