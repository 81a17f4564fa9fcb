"""A digest of a metadata image, made anew for those tables alone that changed since the last one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.records import ValueWriter
from millrace.kraft.log.snapshot import object_records, topic_records
from millrace.kraft.tables.brokers import registration_record
from millrace.kraft.tables.streams import stream_record
from millrace.protocol.metadata_records import ConfigRecord, FeatureLevelRecord

Part = tuple[Callable[[MetadataImage], tuple[object, ...]], Callable[[MetadataImage], Iterable[Any]]]


def _configs(image: MetadataImage) -> Iterable[Any]:
    return [
        ConfigRecord(kind, resource, name, value)
        for (kind, resource), values in image.configs.by_resource.items()
        for name, value in values.items()
    ]


# What a part of the digest is made of, and the records that say it.
PARTS: tuple[Part, ...] = (
    (
        lambda image: (image.features,),
        lambda image: [
            FeatureLevelRecord(name, image.features.level(name)) for name in sorted(image.features.levels)
        ],
    ),
    (lambda image: (image.brokers,), lambda image: map(registration_record, image.brokers)),
    (
        lambda image: (image.topics,),
        lambda image: [record for topic in image.topics for record in topic_records(topic)],
    ),
    (lambda image: (image.configs,), _configs),
    (lambda image: (image.streams,), lambda image: map(stream_record, image.streams.by_id.values())),
    (lambda image: (image.objects, image.streams), object_records),
)


class Digests:
    """Of one node's images, one after the other."""

    def __init__(self) -> None:
        self._writer = ValueWriter()
        self._known: list[tuple[tuple[object, ...], bytes]] = [((), b"")] * len(PARTS)

    def of(self, image: MetadataImage) -> str:
        for place, (made_of, records) in enumerate(PARTS):
            tables, (known, _) = made_of(image), self._known[place]
            if len(known) != len(tables) or any(a is not b for a, b in zip(known, tables, strict=True)):
                values = self._writer.write_all(records(image))
                digest = hashlib.blake2b(b"".join(values), digest_size=8).digest()
                self._known[place] = (tables, digest)
        rest = (image.epoch, image.producer_ids, image.streams.next_id, image.objects.next_id)
        whole = repr(rest).encode() + b"".join(digest for _, digest in self._known)
        return hashlib.blake2b(whole, digest_size=8).hexdigest()
