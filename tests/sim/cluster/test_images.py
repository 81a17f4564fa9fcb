"""What is found of the images of several nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.protocol.stream_records import StreamRecord
from tests.sim.cluster.images import Images, paths_in
from tests.sim.history import History


def after(image: MetadataImage, stream_id: int, end: int = 0) -> MetadataImage:
    """With one more stream, or another end of it."""
    delta = MetadataDelta(image)
    delta.apply(StreamRecord(stream_id, bytes(15) + b"t", stream_id, 0, 1, 1, 1, 0, end))
    return delta.done(image.offset + 1, 1)


def met(*images: tuple[str, MetadataImage]) -> list[str]:
    history = History()
    seen = Images(history, Counter())
    for name, image in images:
        machine: Any = SimpleNamespace(name=name)
        seen.meet(machine, image)
    return history.findings


def line(*ends: int) -> list[MetadataImage]:
    """Images that follow one another, each of streams that the one before it has not."""
    images = [EMPTY_IMAGE]
    for stream_id, end in enumerate(ends):
        images.append(after(images[-1], stream_id, end))
    return images


def test_equal_images_of_two_nodes_are_no_finding() -> None:
    """Made by each for itself, in whatever order they come."""
    ours, theirs = line(1, 2, 3), line(1, 2, 3)
    in_turns = [
        (name, image)
        for pair in zip(ours, theirs, strict=True)
        for name, image in zip("ab", pair, strict=True)
    ]
    assert met(*in_turns) == []
    assert met(*(("a", image) for image in ours), *(("b", image) for image in theirs)) == []


def test_an_image_that_differs_is_found_where_it_begins_to() -> None:
    """Also behind images that were equal, of which the node that differs shares parts."""
    ours, theirs = line(1, 2, 3), line(1, 2, 4)
    found = met(*(("a", image) for image in ours), *(("b", image) for image in theirs))
    assert found == ["unequal-image: b at offset 3"]


def test_what_differs_is_found_again_while_it_stays() -> None:
    """A part that was unequal once is equal to nothing but itself."""
    ours, theirs = line(1, 3, 5), line(1, 4, 5)
    found = met(*(("a", image) for image in ours), *(("b", image) for image in theirs))
    assert found == ["unequal-image: b at offset 2", "unequal-image: b at offset 3"]


def test_parts_are_all_that_an_image_has() -> None:
    """No field is left out, nor one of a table in it."""
    named = {path.partition(".")[0] for path in paths_in(EMPTY_IMAGE)}
    assert named == {one.name for one in fields(EMPTY_IMAGE)}
    assert {f"objects.{one.name}" for one in fields(EMPTY_IMAGE.objects)} <= {*paths_in(EMPTY_IMAGE)}
