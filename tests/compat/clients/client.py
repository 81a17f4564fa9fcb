"""What the matrix asks of a client: to send records, and to read a topic from its beginning to its end as it
is now.

Kept true: a client answers with all that it can show of a record, and says in `can_send` and `show` what it
cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.compat.records import Record


class Client(Protocol):
    name: str

    def version(self) -> str:
        """As docs/clients.md names it."""

    def can_send(self, record: Record) -> bool:
        """Whether its interface has words for this record."""

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Record]) -> None:
        """Sends all of them, in order; returns when all are acknowledged."""

    def read(self, address: str, topics: Sequence[str]) -> dict[str, list[Record]]:
        """Every record of each topic, in order of partition and offset."""

    def show(self, record: Record) -> Record:
        """The record as this client can show it: itself, for most."""
