"""What a kind of write-ahead log is to those who configure, open and look at one. A further kind fills in one
WalKind, in its own folder.

Not here: the log itself (log.py), which address names which kind (opening.py). Nobody outside of this package
asks which kind it is: what differs from kind to kind is a field here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any, Protocol

from millrace.protocol.dataclass import dataclass
from millrace.runtime.disk import Disk
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import StoreAddress
from millrace.runtime.objectstore.address_words import shown_value
from millrace.runtime.rand import Rand
from millrace.wal.config import parse_bytes
from millrace.wal.identity import WalIdentity
from millrace.wal.log import WalOwner, WriteAheadLog


class WalSettings(Protocol):
    """A kind's own, frozen; everybody else passes them on, and reads no more than this."""

    @property
    def capacity_bytes(self) -> int:
        """The most that the log may hold; one that is there, or finds little room, may hold less."""
        ...

    def problems(self) -> list[str]:
        """Everything that is wrong, in words; empty when nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class WalWords:
    """What an operator said of the log. `mistakes` grows by what cannot be read; what is read instead is then
    of no use."""

    options: Mapping[str, str]  # parameters of the address, the store's among them
    direct: str  # wal.direct.io
    corruption: str  # wal.corruption
    mistakes: list[str] = field(default_factory=list)
    asked: dict[str, None] = field(default_factory=dict)  # options that the kind reads

    def number(self, name: str, unset: int, what: str = "a number") -> int:
        """Of bytes too, with a unit or none."""
        text = self.text(name, "")
        try:
            return parse_bytes(text) if text else unset
        except ValueError:
            self.mistakes.append(f"has {name}={shown_value(name, text)}, which is not {what}")
            return unset

    def text(self, name: str, unset: str) -> str:
        self.asked[name] = None
        return self.options.get(name) or unset


@dataclass(frozen=True, slots=True)
class WalPlace:
    """Where the log is, and what an implementation may need of the world. `settings` are what its kind's
    `read_settings` gave. `open_store` gives a bare store, one more each time, which whoever asked for it
    closes."""

    address: StoreAddress
    disk: Disk
    open_store: Callable[[StoreAddress], Awaitable[ObjectStore]]
    rand: Rand
    settings: Any


@dataclass(frozen=True, slots=True)
class WalReport:
    """What a look at a log found: `facts` for programs, all else for people, a sentence each."""

    facts: Mapping[str, Any]
    about: list[str]
    rows: list[tuple[str, int, int]]  # what lies there: kind, count, bytes
    notes: list[str]
    harms: list[str]

    @property
    def is_sound(self) -> bool:
        return not self.harms


@dataclass(frozen=True, slots=True)
class WalKind:
    """`open` raises what the implementation says. `identify` gives the identity of the log at the place, None
    where there is none; it changes nothing. `name` is what metadata calls the kind.

    `inspect` (cluster, node, whether to read everything) reads alone, so that the log's owner may be at work;
    a kind without it is left out where nodes are checked. `file_of`: the one file or device that all of it
    lies in, for who looks at it while the node is stopped; None where it is not one. `check_room` raises
    DiskFull where a new log finds no room, or leaves less than so many bytes, and makes nothing; None for a
    kind that takes none at once. `name_of` is what the log is called in sentences; `mend` what is to be done
    about damage; `verify` the command that shows what damage costs, "" for none. `begin_after`: the position
    at which a log goes on, and begins once it is emptied, whose records end at the given one.
    """

    read_settings: Callable[[WalWords], WalSettings]
    open: Callable[[WalPlace, WalOwner], Awaitable[WriteAheadLog]]
    identify: Callable[[WalPlace, int], Awaitable[WalIdentity | None]]
    name: str
    name_of: Callable[[StoreAddress], str] = str
    mend: str = "mend what it lies on"
    verify: str = ""
    inspect: Callable[[WalPlace, str, int, bool], Awaitable[WalReport]] | None = None
    file_of: Callable[[StoreAddress], str] | None = None
    check_room: Callable[[WalPlace, int], Awaitable[None]] | None = None
    begin_after: Callable[[int], int] = int
