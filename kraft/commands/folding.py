"""Deciding, encoding and applying a command that names thousands, in steps with pauses between them. Pure.

What comes of it lies beside the image until the last step: the caller takes it whole, or drops it where the
image that it was decided on has gone. Not here: who runs meanwhile, and in what order commands are decided
(controller.py).
"""

from __future__ import annotations

from typing import Any, Final

from millrace.kraft.commands.decision import Context, Decision
from millrace.kraft.commands.table import Command
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.records import ValueWriter
from millrace.protocol.dataclass import dataclass
from millrace.protocol.stream_records import RemoveStreamsRecord
from millrace.runtime.scheduling.yielding import Yielding

RECORDS_PER_CHUNK: Final = 300  # applied between two pauses: two or three milliseconds


@dataclass(frozen=True, slots=True)
class Folded:
    """A decision, its records encoded, and what they make of the image that it was decided on."""

    decision: Decision
    values: list[bytes]
    delta: MetadataDelta


def fold_yielding(
    command: Command, context: Context, request: Any, writer: ValueWriter
) -> Yielding[Decision | Folded]:
    """A Decision alone where its records are few enough to be encoded and applied at once. Raises what
    deciding and encoding raise."""
    if command.steps is None:
        return command.decide(context, request)
    decision = yield from command.steps(context, request)
    records = decision.records
    if sum(map(weight_of, records)) <= RECORDS_PER_CHUNK:
        return decision
    yield
    values = yield from writer.write_yielding(records)
    delta = MetadataDelta(context.image)
    weight = RECORDS_PER_CHUNK
    for record in records:
        if weight >= RECORDS_PER_CHUNK:
            weight = 0
            yield
        weight += weight_of(record)
        delta.apply(record)
    return Folded(decision, values, delta)


def weight_of(record: Any) -> int:
    """How many plain records it takes as long as."""
    return len(record.stream_ids) if isinstance(record, RemoveStreamsRecord) else 1
