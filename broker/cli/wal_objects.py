"""A log of objects, looked at: `millrace wal list|show|verify ADDRESS`, and `millrace fsck` of one. Reads
alone; its owner may be at work.

Not here: what counts and what is damaged (wal/object/inspection.py), a block log (wal.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from millrace.broker.cli import wal_text
from millrace.broker.cli.table import size_text, table
from millrace.broker.cli.wal_text import Contents, describe, part_lines, record_line
from millrace.broker.errors import CommandRefused

if TYPE_CHECKING:
    from millrace.runtime.objectstore import ObjectStore
    from millrace.runtime.objectstore.address import StoreAddress
    from millrace.wal.kind import WalReport
    from millrace.wal.log import WalRecord


async def look_at(action: str, address: StoreAddress, node_id: int | None, *, is_json: bool) -> int:
    """What `millrace wal` does with the address of a log of objects; its exit code."""
    from millrace.broker.inspection.opening import open_to_look
    from millrace.runtime.bundle import real_runtime
    from millrace.runtime.errors import MillraceError
    from millrace.runtime.objectstore.address import AddressError
    from millrace.wal.object.inspection import LogInspection, damage_line

    runtime = real_runtime()
    try:
        store = await open_to_look(runtime, address)
        try:
            node, cluster_id = await choose_log(store, node_id)
            contents = Contents()

            def on_record(record: WalRecord) -> None:
                if action == "show":
                    print(record_line(describe(record), is_json=is_json))
                else:
                    contents.add(describe(record))

            found = await LogInspection(store, cluster_id, node, runtime.rand.split("wal inspection")).run(
                on_record
            )
        finally:
            await store.close()
    except (AddressError, MillraceError, OSError, ValueError) as error:
        print(f"millrace wal: {error}", file=sys.stderr)
        return 2
    if action == "show":
        for damage in found.damages:
            print(f"millrace wal: {damage_line(damage)}", file=sys.stderr)
        return 0
    report = found.report()
    about = {**report.facts, **contents.as_dict(), "is_sound": found.is_sound}
    print(json.dumps(about, indent=2) if is_json else "\n".join(lines(action, report, about)))
    return 1 if action == "verify" and not found.is_sound else 0


async def choose_log(store: ObjectStore, node_id: int | None) -> tuple[int, str]:
    """The one that was asked for, or the only one there is. Raises CommandRefused where there is none, more
    than one, or one whose cluster cannot be read."""
    from millrace.wal.object.inspection import nodes_of

    nodes = await nodes_of(store)
    chosen = [node for node in nodes if node_id in (None, node[0])]
    if not chosen:
        raise CommandRefused(
            f"there is no log of node {node_id}" if nodes else "no node has a log of objects there"
        )
    if len(chosen) > 1:
        who = ", ".join(dict.fromkeys(str(node) for node, _ in chosen))
        if len({node for node, _ in chosen}) > 1:
            raise CommandRefused(f"nodes {who} have a log there: say --node")
        clusters = ", ".join(cluster_id for _, cluster_id in chosen)
        raise CommandRefused(
            f"clusters {clusters} have objects of a log of node {who} there, and no root says whose it is"
        )
    if not chosen[0][1]:
        raise CommandRefused(
            f"the object millrace-wal-{chosen[0][0]} cannot be read, which names the log's cluster, and no "
            "other object of the log is there"
        )
    return chosen[0]


def overview(found: WalReport) -> Iterator[str]:
    """A report as people read it."""
    yield from found.about
    if found.rows:
        yield from table(
            ("kind", "objects", "bytes"), [(kind, count, size_text(size)) for kind, count, size in found.rows]
        )
    yield from found.notes
    yield from found.harms


def lines(action: str, report: WalReport, found: Mapping[str, Any]) -> Iterator[str]:
    yield from overview(report)
    yield f"{found['records']} records"
    yield from part_lines(found, is_list=action == "list")
    if action == "verify":
        yield "sound" if found["is_sound"] else advice(found)


def advice(found: Mapping[str, Any]) -> str:
    if found["faults"] and found["is_found"]:
        lost = found["damages"] or any(part["gaps"] for part in found["streams"])
        return (
            "NOT sound: wal.corruption=refuse refuses a start; with skip or truncate one goes on without "
            "the "
            "root object, and writes it anew"
        ) + (f"; {wal_text.advice(found)}" if lost else "")
    if found["faults"]:
        return (
            "NOT sound: restore the object that is named from a copy, or use another place and start "
            "once "
            "with wal.lost.accept=true"
        )
    return wal_text.advice(found)
