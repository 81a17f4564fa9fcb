"""`millrace streams list|show`: which streams there are, whose they are, and which objects hold what of one.

Exit codes: 0 it is shown, 1 there is no such stream or topic, 2 it could not be looked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.broker.cli import RunLoop
from millrace.broker.cli.inspecting import CANNOT_LOOK, look, parse_inspection, say_running, settings_of
from millrace.broker.cli.table import counted, table

if TYPE_CHECKING:
    from millrace.broker.inspection.inventory import Held, KnownStream
    from millrace.broker.inspection.opening import Inspected

NOT_THERE = 1
ABOUT = """\
Lists the streams that partitions are made of, or shows one with the objects that hold it. A partition has a
data stream (its records), a meta stream (its small states) and a time stream (its time index). Ends are of
what is committed as objects; what the owner's write-ahead log holds lies beyond.

  millrace streams list --data-dir /var/lib/millrace --topic orders
  millrace streams show 17 --json
"""


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    lister = "every stream", {"--topic": {"metavar": "NAME", "help": "only this topic's"}}
    given = parse_inspection(
        "streams", ABOUT, lister, ("one stream, and which objects hold it", "stream_id"), words
    )
    settings = settings_of(given, env)
    if settings is None:
        return CANNOT_LOOK
    return run_loop(look(settings, False, lambda runtime, inspected: tell(inspected, given)))


async def tell(inspected: Inspected, given: argparse.Namespace) -> int:
    from millrace.broker.inspection.inventory import known_streams

    say_running(inspected, "this is what it had written down a moment ago")
    streams = list(known_streams(inspected.image))
    if given.command == "list":
        chosen = [stream for stream in streams if given.topic in (None, stream.topic)]
        if given.topic is not None and not chosen:
            print(f"millrace: no stream of a topic {given.topic!r} in the metadata", file=sys.stderr)
            return NOT_THERE
        if given.json:
            print(json.dumps([as_values(stream) for stream in chosen], indent=1))
        else:
            print(*as_table(chosen), f"\n{counted(len(chosen), 'stream')}", sep="\n")
        return 0
    stream = next((one for one in streams if one.stream_id == given.stream_id), None)
    if stream is None:
        print(f"millrace: no stream {given.stream_id} in the metadata", file=sys.stderr)
        return NOT_THERE
    values = as_values(stream)
    held = [held_values(one) for one in stream.held]
    if given.json:
        print(json.dumps({**values, "held": held}, indent=1))
        return 0
    print(*(f"{name:<10} {value}" for name, value in values.items()), sep="\n")
    rows = [(one.start, one.end, one.place) for one in stream.held]
    if rows:
        print("", *table(("start", "end", "in objects"), rows), sep="\n")
    return 0


def held_values(held: Held) -> dict[str, Any]:
    """`owed_by` is there only where no object has it: the node whose write-ahead log does, None where that
    was given up."""
    values: dict[str, Any] = {"start": held.start, "end": held.end, "objects": list(held.object_ids)}
    if not held.object_ids:
        values["owed_by"] = held.owed_by if held.owed_by >= 0 else None
    return values


def as_values(stream: KnownStream) -> dict[str, Any]:
    return {
        "stream_id": stream.stream_id,
        "topic": stream.topic,
        "partition": stream.partition,
        "role": stream.role,
        "state": "open" if stream.is_open else "closed",
        "node_id": stream.node_id,
        "epoch": stream.epoch,
        "start": stream.start,
        "end": stream.end,
        "ranges": len(stream.held),
    }


def as_table(streams: Sequence[KnownStream]) -> list[str]:
    head = ("stream_id", "topic", "partition", "role", "state", "node_id", "epoch", "start", "end", "ranges")
    return table(head, [[as_values(stream)[name] for name in head] for stream in streams])
