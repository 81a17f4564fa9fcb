"""The claim on the metadata log that a restore prepares for the first start of a voter of several: it is
recorded in the restored metadata, since nobody leads yet who could record it. Pure.

    incarnation     8 bytes that are drawn with each restore | the last 8 of the restored directory's id

By its second half a start knows it from a claim of another, which a directory that an earlier build restored
has in its place. Not here: putting it into the bucket (broker/quorum/restored_member.py).
"""

from __future__ import annotations

from typing import Final

from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.stream_records import NodeClaimRecord

DRAWN_BYTES: Final = 8


def with_prepared(image: MetadataImage, directory_id: bytes, drawn: bytes) -> MetadataImage:
    """`drawn`: 16 bytes by chance."""
    delta = MetadataDelta(image)
    number = image.claims.highest(METADATA_SERIES) + 1
    incarnation = drawn[:DRAWN_BYTES] + directory_id[DRAWN_BYTES:]
    delta.apply(NodeClaimRecord(METADATA_SERIES, number, incarnation))
    return delta.done(image.offset, image.epoch)


def prepared_in(image: MetadataImage, directory_id: bytes) -> bytes | None:
    """The incarnation, in metadata as it was restored; None where no restore prepared one."""
    found = (claim.incarnation for claim in image.claims.of(METADATA_SERIES))
    return next((one for one in found if one[DRAWN_BYTES:] == directory_id[DRAWN_BYTES:]), None)
