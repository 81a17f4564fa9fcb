"""`millrace objects list|show`: what is in the bucket, as metadata knows it, and what one object holds, by
its own index.

Exit codes: 0 it is shown, 1 there is no such object, 2 it could not be looked: of an object whose contents
cannot be read, what metadata says of it is shown all the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.broker.cli import RunLoop
from millrace.broker.cli.inspecting import (
    CANNOT_LOOK,
    look,
    parse_inspection,
    say_running,
    settings_of,
    time_text,
)
from millrace.broker.cli.table import counted, size_text, table

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.broker.inspection.inventory import KnownObject, StreamName
    from millrace.broker.inspection.opening import Inspected
    from millrace.runtime.bundle import Runtime
    from millrace.runtime.objectstore import ObjectStore
    from millrace.s3stream.ids import ObjectKind
    from millrace.s3stream.objects.composite import Link
    from millrace.s3stream.objects.format import BlockRef

ABOUT = """\
Lists the objects that metadata knows, or shows one: its key, its state, and the ranges of streams in it,
block by block, from its own index.

  millrace objects list --data-dir /var/lib/millrace
  millrace objects list --state pending_deletion --json
  millrace objects show 42

States: prepared (an id that may appear until a deadline), committed (readers use it), pending_deletion
(deleted after a grace). Times: until when it is prepared, when the oldest data in it was, when it was marked
for deletion. An object of a stream has a range of it; what a stream-set object holds stands in its own index:
see `show`.
"""
NOT_THERE = 1
BLOCK_HEAD = ("stream_id", "start", "end", "entries", "position", "size_bytes")
LINK_HEAD = ("object_id", "size_bytes", "start", "end", "writer")


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    options = {"--state": {"choices": ("prepared", "committed", "pending_deletion"), "help": "only these"}}
    lister = "every object that metadata knows", options
    shower = "one object, with what its index says", "object_id"
    given = parse_inspection("objects", ABOUT, lister, shower, words)
    settings = settings_of(given, env)
    if settings is None:
        return CANNOT_LOOK
    if given.command == "list":
        return run_loop(look(settings, False, lambda runtime, inspected: list_objects(inspected, given)))
    return run_loop(
        look(settings, False, lambda runtime, inspected: show(runtime, inspected, settings, given))
    )


async def list_objects(inspected: Inspected, given: argparse.Namespace) -> int:
    from millrace.broker.inspection.inventory import known_objects, stream_names

    say_running(inspected, "this is what it had written down a moment ago")
    found = [one for one in known_objects(inspected.image) if given.state in (None, one.state.name.lower())]
    if given.json:
        print(json.dumps([as_values(inspected, one) for one in found], indent=1))
        return 0
    names = stream_names(inspected.image, [one.stream_id for one in found if one.stream_id >= 0])
    rows = [
        (
            one.object_id,
            one.state.name.lower(),
            one.kind.name.lower(),
            size_text(one.size_bytes),
            *(_range(one, names) if one.stream_id >= 0 else ("", "", "")),
            time_text(one.time_ms),
        )
        for one in found
    ]
    print(
        *table(("object", "state", "kind", "size", "stream", "of", "offsets", "time (UTC)"), rows), sep="\n"
    )
    committed = [one for one in found if one.is_committed]
    print(
        f"\n{counted(len(found), 'object')}; {len(committed)} committed, "
        f"{size_text(sum(one.size_bytes for one in committed))}"
    )
    return 0


def _range(known: KnownObject, names: Mapping[int, StreamName]) -> tuple[object, object, str]:
    return known.stream_id, names.get(known.stream_id, ""), f"[{known.start}, {known.end})"


def as_values(inspected: Inspected, known: KnownObject) -> dict[str, Any]:
    from millrace.s3stream.ids import token_text
    from millrace.s3stream.objects.keys import object_key

    return {
        "object_id": known.object_id,
        "key": object_key(inspected.cluster_id, known.object_id),
        "state": known.state.name.lower(),
        "kind": known.kind.name.lower(),
        "size_bytes": known.size_bytes,
        "time_ms": known.time_ms,
        "node_id": known.node_id,
        "writer": token_text(known.writer) if known.writer else "",
        "stream_id": known.stream_id,
        "start": known.start,
        "end": known.end,
    }


async def show(
    runtime: Runtime, inspected: Inspected, settings: BrokerSettings, given: argparse.Namespace
) -> int:
    from millrace.broker.cli.refusals import sentence_of
    from millrace.broker.inspection.inventory import known_object
    from millrace.broker.inspection.opening import open_bucket
    from millrace.runtime.errors import MillraceError

    say_running(inspected, "this is what it had written down a moment ago")
    known = known_object(inspected.image, given.object_id)
    values: dict[str, Any] | None = as_values(inspected, known) if known is not None else None
    fault = ""
    store = await open_bucket(runtime, settings)
    try:
        if known is None:
            values = await _unknown(store, inspected, given.object_id)
        elif known.is_committed:
            assert values is not None
            values |= await _contents(store, values["key"], known.kind, known.size_bytes, known.writer)
    except MillraceError as error:
        if values is None:
            raise
        fault = sentence_of(error, settings) or repr(error)
    finally:
        await store.close()
    if values is None:
        print(
            f"millrace: no object {given.object_id}, neither in the metadata nor in the bucket",
            file=sys.stderr,
        )
        return NOT_THERE
    if given.json:
        print(json.dumps({**values, "fault": fault} if fault else values, indent=1))
    else:
        print("\n".join(as_lines(inspected, values)))
    if fault:
        print(f"millrace: its contents cannot be shown: {fault}", file=sys.stderr)
    return CANNOT_LOOK if fault else 0


def as_lines(inspected: Inspected, values: Mapping[str, Any]) -> list[str]:
    """One object as people read it."""
    from millrace.broker.inspection.inventory import stream_names

    blocks, links = values.get("blocks", ()), values.get("links", ())
    stream_id = values.get("stream_id", -1)
    names = stream_names(inspected.image, [stream_id, *(row["stream_id"] for row in blocks)])
    told = {name: values[name] for name in ("object_id", "key", "state", "kind") if name in values}
    told["size"] = f"{size_text(values['size_bytes'])} ({values['size_bytes']} bytes)"
    if "time_ms" in values:
        told |= {"time (UTC)": time_text(values["time_ms"]), "node_id": values["node_id"]}
        if values["writer"]:
            told["writer"] = values["writer"]
    if stream_id >= 0:
        told |= {
            "stream": f"{stream_id} {names.get(stream_id, '')}",
            "offsets": f"[{values['start']}, {values['end']})",
        }
    lines = [f"{name:<11} {value}" for name, value in told.items()]
    if links:
        lines += ["", *table(LINK_HEAD, [[row[name] for name in LINK_HEAD] for row in links])]
    if blocks:
        rows = [[*(row[name] for name in BLOCK_HEAD), names.get(row["stream_id"], "")] for row in blocks]
        lines += ["", *table((*BLOCK_HEAD, "of"), rows)]
    return lines


async def _unknown(store: ObjectStore, inspected: Inspected, object_id: int) -> dict[str, Any] | None:
    """An object that is in the bucket and not in metadata: linked by a composite, or an orphan, which may be
    a composite itself."""
    from millrace.s3stream.errors import ObjectCorrupt
    from millrace.s3stream.ids import ObjectId, ObjectKind
    from millrace.s3stream.objects.keys import object_key

    key = object_key(inspected.cluster_id, ObjectId(object_id)) if object_id >= 0 else ""
    entry = await store.head(key) if key else None
    if entry is None:
        return None
    values = {
        "key": key,
        "state": "not in metadata: linked by a composite, or an orphan",
        "size_bytes": entry.size_bytes,
    }
    try:
        return values | await _contents(store, key, ObjectKind.STREAM, entry.size_bytes)
    except ObjectCorrupt as error:
        try:
            return values | await _contents(store, key, ObjectKind.COMPOSITE, entry.size_bytes)
        except ObjectCorrupt:
            raise error from None


async def _contents(
    store: ObjectStore, key: str, kind: ObjectKind, size_bytes: int, writer: int = 0
) -> dict[str, Any]:
    """What the object says of itself. Raises ObjectMissing, ObjectCorrupt."""
    from millrace.s3stream.ids import ObjectKind
    from millrace.s3stream.objects.reader import CompositeReader, ObjectReader

    if kind is ObjectKind.COMPOSITE:
        links = (await CompositeReader(store, key, writer).index()).links
        return {"links": [_link(link) for link in links]}
    index = await ObjectReader(store, key, size_bytes, writer=writer).index()
    return {"blocks": [_block(row) for row in index.rows()]}


def _link(link: Link) -> dict[str, Any]:
    from millrace.s3stream.ids import token_text

    writer = token_text(link.writer) if link.writer else ""
    values = (link.object_id, link.size_bytes, link.start, link.end, writer)
    return dict(zip(LINK_HEAD, values, strict=True))


def _block(row: BlockRef) -> dict[str, int]:
    values = (row.stream_id, row.start, row.end, row.entry_count, row.position, row.size_bytes)
    return dict(zip(BLOCK_HEAD, values, strict=True))
