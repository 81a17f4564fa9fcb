"""MetadataPublisher: the committed image, and those who follow it.

Each commit is handed to every subscriber as (delta, image), in log order and in order of subscription, from
the loop. A subscriber does little and raises nothing: an escape from one ends the process, since the others
would fall behind.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage

Subscriber = Callable[[MetadataDelta, MetadataImage], None]


class MetadataPublisher:
    def __init__(self, image: MetadataImage = EMPTY_IMAGE) -> None:
        self._image = image
        self._subscribers: list[Subscriber] = []

    @property
    def image(self) -> MetadataImage:
        return self._image

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Called for every later commit; what is committed already is in `image`. Gives what ends it, to be
        called once, and not by a subscriber."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        assert image.offset >= self._image.offset, (image.offset, self._image.offset)
        self._image = image
        for subscriber in self._subscribers:
            subscriber(delta, image)

    def load(self, image: MetadataImage) -> None:
        """What a restart found, or an offset moved by control records alone: nothing that a subscriber would
        act on."""
        self._image = image
