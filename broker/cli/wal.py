"""`millrace wal list|show|verify FILE-OR-DEVICE-OR-ADDRESS`: what a WAL holds, read without changing it.

list    its header, and for each stream how much of it is here
show    every record, one a line
verify  its header, every damage with its place, and every stream that lost something by it; exit code 1 when there is any

Works on a copy, or on the log of a node that is stopped; a log that a node has open is refused, since it changes under the reader. Walks
past damage as recovery does with wal.corruption=skip. Memory does not grow with the log. Exit code 2 for what cannot be read at all.
A log of objects is named by its address and may be in use: wal_objects.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millrace.broker.cli import RunLoop
from millrace.broker.cli.wal_text import Contents, Found, advice, describe, part_lines, record_line
from millrace.broker.errors import CommandRefused
from millrace.runtime.disk_peek import PeekFile
from millrace.runtime.errors import MillraceError
from millrace.wal.block.layout import BLOCK_BYTES, RING_START, DeviceHeader, Geometry, choose_device_header
from millrace.wal.block.recovery import SKIP, RecoveryScan


class Walk:
    """One pass over a log; `scan` tells of damage when it is over."""

    def __init__(self, file: PeekFile) -> None:
        if file.is_locked():
            raise CommandRefused(f"{file.path} is in use by a running node: stop it, or look at a copy")
        if file.size_bytes < RING_START:
            raise CommandRefused(f"{file.path} is no WAL: {file.size_bytes} bytes")
        header = choose_device_header(file.read_at(0, BLOCK_BYTES), file.read_at(BLOCK_BYTES, BLOCK_BYTES))
        if header is None:
            raise CommandRefused(f"{file.path} holds no WAL: nobody has written a header")
        if header.capacity_bytes > file.size_bytes:
            raise CommandRefused(f"{file.path} is {file.size_bytes} bytes, and its header says {header.capacity_bytes}")
        self.header: DeviceHeader = header
        self.scan = RecoveryScan(header, policy=SKIP)
        self._file = file

    def records(self) -> Iterator[Found]:
        geometry = Geometry.of(self.header.capacity_bytes)
        while (wanted := self.scan.wanted()) is not None:
            position, length = wanted
            for record in self.scan.feed(self._file.read_at(geometry.physical(position), length)):
                yield describe(record)


def header_of(walk: Walk) -> dict[str, Any]:
    header = asdict(walk.header)
    header["is_closed"] = header["closed_end"] >= 0
    return header


def contents(walk: Walk) -> dict[str, Any]:
    counted = Contents()
    for found in walk.records():
        counted.add(found)
    return {
        "header": header_of(walk),
        **counted.as_dict(),
        "tail": walk.scan.tail,
        "damages": [asdict(damage) for damage in walk.scan.damages],
    }


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    import argparse

    parser = argparse.ArgumentParser("millrace wal", description="What a WAL holds, read without changing it.")
    parser.add_argument("action", choices=("list", "show", "verify"), help="header and streams | every record | damage")
    parser.add_argument(
        "file",
        help="the file or device, of a node that is stopped, or a copy; or the address of a log of objects, as in s3.wal.path: 0@s3://BUCKET?...",
    )
    parser.add_argument(
        "--node", type=int, metavar="ID", help="whose log of objects, where several nodes have one there"
    )
    parser.add_argument("--json", action="store_true", help="for programs: one object, or with show one a line")
    options = parser.parse_args(words)
    if "://" in options.file:
        from millrace.broker.cli.wal_objects import look_at

        return run_loop(look_at(options.action, options.file, options.node, is_json=options.json))
    try:
        with PeekFile(options.file) as file:
            walk = Walk(file)
            if options.action == "show":
                return show(walk, is_json=options.json)
            found = contents(walk)
            found["is_sound"] = not found["damages"]
            print(json.dumps(found, indent=2) if options.json else "\n".join(lines(options.action, found)))
            return 1 if options.action == "verify" and not found["is_sound"] else 0
    except MillraceError as error:
        print(f"millrace wal: {error}", file=sys.stderr)
        return 2


def show(walk: Walk, *, is_json: bool) -> int:
    for found in walk.records():
        print(record_line(found, is_json=is_json))
    for damage in walk.scan.damages:
        print(f"millrace wal: {damage_line(asdict(damage))}", file=sys.stderr)
    return 0


def damage_line(damage: Mapping[str, Any]) -> str:
    return f"damaged from position {damage['start']} (byte {damage['place']}) to {damage['end']}: {damage['reason']}"


def lines(action: str, found: Mapping[str, Any]) -> Iterator[str]:
    header = found["header"]
    state = "closed in order" if header["is_closed"] else "not closed in order"
    yield f"cluster {header['cluster_id']}, node {header['node_id']}, epoch {header['epoch']} from position {header['epoch_start']}; {state}"
    yield (
        f"{header['capacity_bytes']} bytes; begins at {header['head']}, forgotten below {header['trim']}, ends at {found['tail']}; "
        f"{found['records']} records"
    )
    yield from part_lines(found, is_list=action == "list")
    for damage in found["damages"]:
        yield damage_line(damage)
    if action == "verify":
        yield "sound" if found["is_sound"] else advice(found)
