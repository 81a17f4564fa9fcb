"""`millrace objects list|show`: what is in the bucket, as metadata knows it, and what one object holds, by its own index."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.broker.cli import RunLoop
from millrace.broker.cli.inspecting import CANNOT_LOOK, look, parse_inspection, say_running, settings_of, time_text
from millrace.broker.cli.table import size_text, table

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.broker.inspection import Inspected
    from millrace.broker.inventory import KnownObject
    from millrace.runtime import Runtime
    from millrace.runtime.objectstore import ObjectStore
    from millrace.s3stream.ids import ObjectKind
    from millrace.s3stream.objects.format import BlockRef

ABOUT = """\
Lists the objects that metadata knows, or shows one: its key, its state, and the ranges of streams in it, block by block, from its own index.

  millrace objects list --data-dir /var/lib/millrace
  millrace objects list --state doomed --json
  millrace objects show 42

States: prepared (an id that may appear until a deadline), committed (readers use it), doomed (deleted after a grace).
"""


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    options = {"--state": {"choices": ("prepared", "committed", "doomed"), "help": "only these"}}
    lister = "every object that metadata knows", options
    shower = "one object, with what its index says", "object_id"
    given = parse_inspection("objects", ABOUT, lister, shower, words)
    settings = settings_of(given, env)
    if settings is None:
        return CANNOT_LOOK
    if given.command == "list":
        return run_loop(look(settings, False, lambda runtime, inspected: list_objects(inspected, given)))
    return run_loop(look(settings, False, lambda runtime, inspected: show(runtime, inspected, settings, given)))


async def list_objects(inspected: Inspected, given: argparse.Namespace) -> int:
    from millrace.broker.inventory import known_objects

    say_running(inspected, "this is what it had written down a moment ago")
    found = [one for one in known_objects(inspected.image) if given.state in (None, one.state.name.lower())]
    if given.json:
        print(json.dumps([as_values(inspected, one) for one in found], indent=1))
        return 0
    rows = [
        (one.object_id, one.state.name.lower(), one.kind.name.lower(), size_text(one.size_bytes), _range(one), time_text(one.time_ms))
        for one in found
    ]  # fmt: skip
    print(*table(("object", "state", "kind", "size", "range", "time (UTC)"), rows), sep="\n")
    committed = [one for one in found if one.is_committed]
    print(f"\n{len(found)} objects; {len(committed)} committed, {size_text(sum(one.size_bytes for one in committed))}")
    return 0


def _range(known: KnownObject) -> str:
    return f"stream {known.stream_id} [{known.start}, {known.end})" if known.stream_id >= 0 else ""


def as_values(inspected: Inspected, known: KnownObject) -> dict[str, Any]:
    from millrace.s3stream.objects.keys import object_key

    return {
        "object_id": known.object_id,
        "key": object_key(inspected.cluster_id, known.object_id),
        "state": known.state.name.lower(),
        "kind": known.kind.name.lower(),
        "size_bytes": known.size_bytes,
        "time_ms": known.time_ms,
        "node_id": known.node_id,
        "stream_id": known.stream_id,
        "start": known.start,
        "end": known.end,
    }


async def show(runtime: Runtime, inspected: Inspected, settings: BrokerSettings, given: argparse.Namespace) -> int:
    from millrace.broker.inspection import open_bucket
    from millrace.broker.inventory import known_object
    from millrace.s3stream.objects.keys import object_key

    say_running(inspected, "this is what it had written down a moment ago")
    known = known_object(inspected.image, given.object_id)
    store = await open_bucket(runtime, settings)
    try:
        if known is not None:
            values = as_values(inspected, known)
            values |= await _contents(store, values["key"], known.kind, known.size_bytes) if known.is_committed else {}
        else:
            found = await _unknown(store, object_key(inspected.cluster_id, given.object_id))
            if found is None:
                print(f"no object {given.object_id}, neither in the metadata nor in the bucket")
                return 1
            values = found
    finally:
        await store.close()
    if given.json:
        print(json.dumps(values, indent=1))
        return 0
    print(*(f"{name:<11} {values[name]}" for name in values if name not in ("blocks", "links")), sep="\n")
    for name, head in (("links", ("object_id", "size_bytes", "start", "end")), ("blocks", BLOCK_HEAD)):
        if values.get(name):
            print("", *table(head, [[row[field] for field in head] for row in values[name]]), sep="\n")
    return 0


BLOCK_HEAD = ("stream_id", "start", "end", "entries", "position", "size_bytes")


async def _unknown(store: ObjectStore, key: str) -> dict[str, Any] | None:
    """An object that is in the bucket and not in metadata: linked by a composite, or an orphan."""
    from millrace.s3stream.ids import ObjectKind

    entry = await store.head(key)
    if entry is None:
        return None
    values = {
        "key": key,
        "state": "not in metadata: linked by a composite, or an orphan",
        "size_bytes": entry.size_bytes,
    }
    return values | await _contents(store, key, ObjectKind.STREAM, entry.size_bytes)


async def _contents(store: ObjectStore, key: str, kind: ObjectKind, size_bytes: int) -> dict[str, Any]:
    """What the object says of itself. Raises ObjectMissing, ObjectCorrupt."""
    from millrace.s3stream.ids import ObjectKind
    from millrace.s3stream.objects.reader import CompositeReader, ObjectReader

    if kind is ObjectKind.COMPOSITE:
        links = (await CompositeReader(store, key).index()).links
        return {"links": [{name: getattr(link, name) for name in link.__dataclass_fields__} for link in links]}
    index = await ObjectReader(store, key, size_bytes).index()
    return {"blocks": [_block(row) for row in index.rows()]}


def _block(row: BlockRef) -> dict[str, int]:
    values = (row.stream_id, row.start, row.end, row.entry_count, row.position, row.size_bytes)
    return dict(zip(BLOCK_HEAD, values, strict=True))
