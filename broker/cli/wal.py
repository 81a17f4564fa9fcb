"""`millrace wal list|show|verify FILE-OR-DEVICE-OR-ADDRESS`: what a WAL holds, read without changing it.

list    its header, and for each stream how much of it is here
show    every record, one a line
verify its header, every damage with its place, and every stream that lost something by it; exit code 1 when
there is any

Works on a copy, or on the log of a node that is stopped; a log that a node has open is refused, since it
changes under the reader. Walks past damage as recovery does with wal.corruption=skip. Memory does not grow
with the log. Exit code 2 for what cannot be read at all. One copy of the header that cannot be read is told
and is no damage: the other one serves, and the next start writes both. Without either, see wal_loose.py. An
address, as in s3.wal.path, is gone by as a start goes by it; a log of objects may be in use: wal_objects.py.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millrace.broker.cli import RunLoop
from millrace.broker.cli.wal_loose import LooseWalk, loose_contents, loose_lines
from millrace.broker.cli.wal_text import Contents, Found, advice, describe, part_lines, record_line
from millrace.broker.errors import CommandRefused
from millrace.runtime.disk.peek import PeekFile
from millrace.runtime.errors import MillraceError
from millrace.runtime.objectstore.address import AddressError, StoreAddress, parse_address
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    RING_START,
    DeviceHeader,
    choose_device_header,
    decode_device_header,
)
from millrace.wal.block.recovery import SKIP, RecoveryScan
from millrace.wal.kind import WalWords
from millrace.wal.opening import kind_of


class Walk:
    """One pass over a log; `scan` tells of damage when it is over."""

    def __init__(self, file: PeekFile, header: DeviceHeader) -> None:
        if header.capacity_bytes > file.size_bytes:
            raise CommandRefused(
                f"{file.path} is {file.size_bytes} bytes, and its header says {header.capacity_bytes}"
            )
        self.header = header
        self.scan = RecoveryScan(header, policy=SKIP)
        self._file = file

    def records(self) -> Iterator[Found]:
        geometry = self.header.geometry
        while (wanted := self.scan.wanted()) is not None:
            position, length = wanted
            place = geometry.physical(position)
            data, unreadable = self._file.read_around(place, length)
            for record in self.scan.feed(data, [at - place + position for at in unreadable]):
                yield describe(record)

    def rotten_copies(self) -> list[int]:
        """Where copies of the header lie that cannot be read."""
        copies = ((at, self._file.read_around(at, BLOCK_BYTES)[0]) for at in (0, BLOCK_BYTES))
        return [at for at, copy in copies if decode_device_header(copy) is None]


def walk_of(file: PeekFile) -> Walk | LooseWalk:
    """By its header; by its blocks where that is gone. Raises CommandRefused where there is neither."""
    if file.is_locked():
        raise CommandRefused(f"{file.path} is in use by a running node: stop it, or look at a copy")
    if file.size_bytes < RING_START:
        raise CommandRefused(f"{file.path} is no WAL: {file.size_bytes} bytes")
    copies, unreadable = file.read_around(0, RING_START)
    header = choose_device_header(copies[:BLOCK_BYTES], copies[BLOCK_BYTES:])
    if header is not None:
        return Walk(file, header)
    loose = LooseWalk(file)
    if not loose.block_count:
        is_something = unreadable or any(copies)
        why = "neither copy of a header can be read, and no block of a log is there" if is_something else ""
        raise CommandRefused(f"{file.path} holds no WAL: {why or 'nobody has written a header'}")
    return loose


def header_of(walk: Walk) -> dict[str, Any]:
    header = asdict(walk.header) | {"wal_id": walk.header.wal_id.hex()}
    header["is_closed"] = header["closed_end"] >= 0
    holder = walk.header.holder
    header["holder"] = None if holder is None else {name: part.hex() for name, part in asdict(holder).items()}
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
        "rotten_copies": walk.rotten_copies(),
        "is_sound": not walk.scan.damages,
    }


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        "millrace wal", description="What a WAL holds, read without changing it."
    )
    parser.add_argument(
        "action", choices=("list", "show", "verify"), help="header and streams | every record | damage"
    )
    parser.add_argument(
        "file",
        help="the file or device, of a node that is stopped, or a copy; or the log's address, as in "
        "s3.wal.path: 0@s3://BUCKET?...",
    )
    parser.add_argument(
        "--node", type=int, metavar="ID", help="whose log of objects, where several nodes have one there"
    )
    parser.add_argument(
        "--json", action="store_true", help="for programs: one object, or with show one a line"
    )
    options = parser.parse_args(words)
    try:
        path: str | None = options.file
        if "://" in options.file:
            address = read_address(options.file)
            path = file_of(address)
        if path is None:
            from millrace.broker.cli.wal_objects import look_at

            return run_loop(look_at(options.action, address, options.node, is_json=options.json))
        with PeekFile(path) as file:
            return tell(options.action, walk_of(file), is_json=options.json)
    except (AddressError, MillraceError) as error:
        print(f"millrace wal: {error}", file=sys.stderr)
        return 2


def read_address(text: str) -> StoreAddress:
    """As a start reads s3.wal.path. Raises AddressError, CommandRefused; an option that nobody reads is told
    on stderr."""
    address = parse_address(text if "@" in text.partition("://")[0] else f"0@{text}")
    words = WalWords(address.options, "prefer", "refuse")
    settings = kind_of(address).read_settings(words)
    mistakes = [f"{address} {mistake}" for mistake in words.mistakes]
    mistakes += [f"{address}: {problem}" for problem in settings.problems()]
    if mistakes:
        raise CommandRefused("; ".join(mistakes))
    for option in address.unknown_options(("kind", *words.asked)):
        print(f"millrace wal: {address}: nothing reads the option {option}", file=sys.stderr)
    return address


def file_of(address: StoreAddress) -> str | None:
    """The file or device that an address names; None where the log is objects. Raises CommandRefused where it
    is a directory."""
    kind = kind_of(address)
    path = None if kind.file_of is None else kind.file_of(address)
    if path is not None and os.path.isdir(path):
        raise CommandRefused(
            f"{path} is a directory: a log of objects in it has an address that ends with /, or says "
            "kind=object"
        )
    return path


def tell(action: str, walk: Walk | LooseWalk, *, is_json: bool) -> int:
    if action == "show":
        return show(walk, is_json=is_json)
    found = contents(walk) if isinstance(walk, Walk) else loose_contents(walk)
    told = lines if isinstance(walk, Walk) else loose_lines
    print(json.dumps(found, indent=2) if is_json else "\n".join(told(action, found)))
    return 1 if action == "verify" and not found["is_sound"] else 0


def show(walk: Walk | LooseWalk, *, is_json: bool) -> int:
    for found in walk.records():
        print(record_line(found, is_json=is_json))
    if isinstance(walk, LooseWalk):
        print(f"millrace wal: {walk.remark()}", file=sys.stderr)
        return 0
    for damage in walk.scan.damages:
        print(f"millrace wal: {damage_line(asdict(damage))}", file=sys.stderr)
    return 0


def damage_line(damage: Mapping[str, Any]) -> str:
    return (
        f"damaged from position {damage['start']} (byte {damage['place']}) to {damage['end']}: "
        f"{damage['reason']}"
    )


def lines(action: str, found: Mapping[str, Any]) -> Iterator[str]:
    header = found["header"]
    state = "closed in order" if header["is_closed"] else "not closed in order"
    yield (
        f"cluster {header['cluster_id']}, node {header['node_id']}, epoch {header['epoch']} from position "
        f"{header['epoch_start']}; {state}"
    )
    yield (
        f"{header['capacity_bytes']} bytes; begins at {header['head']}, forgotten below {header['trim']}, "
        f"ends at {found['tail']}; "
        f"{found['records']} records"
    )
    for at in found["rotten_copies"]:
        yield (
            f"warning: the copy of the header at byte {at} cannot be read; the other one serves, and the "
            "next start writes both anew"
        )
    yield from part_lines(found, is_list=action == "list")
    for damage in found["damages"]:
        yield damage_line(damage)
    if action == "verify":
        yield verdict(found)


def verdict(found: Mapping[str, Any]) -> str:
    if not found["is_sound"]:
        return advice(found)
    return "sound, but for one copy of the header" if found["rotten_copies"] else "sound"
