"""What clients asked and were told, and what of it every later image has to show.

    told-uncommitted     a reply says what is not in the committed image, or is not committed by a majority
    forgotten            what was acknowledged is missing in a later image
    trace-of-refused     what was refused, or never proposed, is in an image
    id-twice             an id (of an object, a stream, a block of producers, a registration) is given twice
    came-back            a topic that was deleted is there again

An answer carries no offset; it counts from the image that its leader had published when it came.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.configs import ResourceType

if TYPE_CHECKING:
    from tests.sim.quorum.replica import Replica

FINDINGS_MAX = 20
FAR = 1 << 60
CONFIG = "retention.ms"


@dataclass(slots=True)
class TopicStory:
    """`told_at`, `gone_at`: the offset from which on it has to be there, and has to be gone."""

    topic_id: bytes | None = None
    told_at: int = FAR
    is_deletion_asked: bool = False
    is_loose: bool = False  # it was asked for with an outcome unknown: it may come at any time
    gone_at: int = FAR
    value: int = 0  # of its configuration, as acknowledged last
    value_at: int = FAR
    unknown_values: dict[int, None] = field(default_factory=dict)  # asked for, outcome unknown


class Floor:
    """A number that only grows: from which offset on it is at least what."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._values: list[int] = []

    def tell(self, offset: int, value: int) -> None:
        self._offsets.append(max(offset, self._offsets[-1] if self._offsets else 0))
        self._values.append(max(value, self._values[-1] if self._values else 0))

    def at(self, offset: int) -> int:
        place = bisect_right(self._offsets, offset)
        return self._values[place - 1] if place else -1


class History:
    def __init__(self) -> None:
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self.on_find: Callable[[str], None] = lambda line: None
        self.topics: dict[str, TopicStory] = {}
        self.never: dict[str, str] = {}  # names of topics that were refused, and why
        self._ids: dict[tuple[str, int], str] = {}  # who was given it
        self._blocks: list[tuple[int, int]] = []
        self._owners: dict[tuple[bytes, int, int], int] = {}  # partition and role -> stream
        self._objects, self._producers, self._streams = Floor(), Floor(), Floor()
        self._epochs: dict[int, Floor] = {}  # broker -> its epoch
        self._ends: dict[int, Floor] = {}  # stream -> its committed end
        self._starts: dict[int, Floor] = {}

    def find(self, kind: str, text: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(f"{kind}: {text}")
            self.on_find(self.findings[-1])

    # What was told, and where the committed metadata was then.

    def on_topic(self, name: str, topic_id: bytes | None, image: MetadataImage) -> None:
        """It was made, or is said to be there already (no id)."""
        story = self.topics[name]
        found = image.topics.by_name(name)
        self.counts["answers"] += 1
        if found is None and not story.is_deletion_asked:
            self.find("told-uncommitted", f"topic {name} is not there at {image.offset}")
        if topic_id is not None and story.topic_id not in (None, topic_id):
            self.find("id-twice", f"topic {name} has another id")
        story.topic_id = topic_id or story.topic_id or (found.topic_id if found is not None else None)
        story.told_at = min(story.told_at, image.offset)

    def on_refused(self, name: str, why: str) -> None:
        """Nothing of this attempt may ever be seen."""
        self.counts["refused"] += 1
        self.never[name] = why

    def on_deleted(self, name: str, image: MetadataImage) -> None:
        self.counts["answers"] += 1
        if image.topics.by_name(name) is not None:
            self.find("told-uncommitted", f"topic {name} is still there at {image.offset}")
        self.topics[name].gone_at = min(self.topics[name].gone_at, image.offset)

    def on_configured(self, name: str, value: int, image: MetadataImage) -> None:
        self.counts["answers"] += 1
        story = self.topics[name]
        if value > story.value:
            story.value, story.value_at = value, image.offset
        self._check_config(name, story, image)

    def on_ids(self, kind: str, ids: Iterable[int], whose: str) -> None:
        for one in ids:
            self.counts["ids"] += 1
            other = self._ids.setdefault((kind, one), whose)
            if other != whose:
                self.find("id-twice", f"{kind} {one}: for {other} and {whose}")

    def on_objects(self, first: int, count: int, whose: str, image: MetadataImage) -> None:
        self.on_ids("object", range(first, first + count), whose)
        self._objects.tell(image.offset, first + count)
        self._check_told(image)

    def on_producer_ids(self, first: int, count: int, image: MetadataImage) -> None:
        self.counts["ids"] += 1
        place = bisect_right(self._blocks, (first, FAR))
        near = self._blocks[max(0, place - 1) : place + 1]
        if any(first < start + length and start < first + count for start, length in near):
            self.find("id-twice", f"producer ids [{first}, {first + count}): given before were {near}")
        self._blocks.insert(place, (first, count))
        self._producers.tell(image.offset, first + count)
        self._check_told(image)

    def on_registered(self, broker_id: int, epoch: int, whose: str, image: MetadataImage) -> None:
        self.on_ids("broker epoch", [epoch], whose)
        self._epochs.setdefault(broker_id, Floor()).tell(image.offset, epoch)
        self._check_told(image)

    def on_stream(
        self, topic_id: bytes, partition: int, role: int, stream_id: int, image: MetadataImage
    ) -> None:
        whose = f"{topic_id.hex()}-{partition}-{role}"
        self.on_ids("stream", [stream_id], whose)
        owned = self._owners.setdefault((topic_id, partition, role), stream_id)
        if owned != stream_id:
            self.find("id-twice", f"{whose} has stream {owned}, and {stream_id}")
        self._streams.tell(image.offset, stream_id + 1)
        self._check_told(image)

    def on_end(self, stream_id: int, end: int, image: MetadataImage) -> None:
        self._ends.setdefault(stream_id, Floor()).tell(image.offset, end)
        self._check_told(image)

    def on_start(self, stream_id: int, start: int, image: MetadataImage) -> None:
        self._starts.setdefault(stream_id, Floor()).tell(image.offset, start)
        self._check_told(image)

    def _check_told(self, image: MetadataImage) -> None:
        """What was just told holds in the image that it was told from."""
        self.counts["answers"] += 1
        for line in self._missing_numbers(image):
            self.find("told-uncommitted", line)

    # What images show.

    def on_image(self, replica: Replica, image: MetadataImage) -> None:
        for line in self._missing_numbers(image):
            self.find("forgotten", f"{replica}: {line}")
        names = {topic.name: topic.topic_id for topic in image.topics}
        for name, topic_id in names.items():
            if name in self.never:
                self.find("trace-of-refused", f"{replica} at {image.offset}: {name}, {self.never[name]}")
            story = self.topics.get(name)
            if story is None or (story.is_loose and story.is_deletion_asked):
                continue
            if image.offset >= story.told_at and story.topic_id != topic_id:
                self.find("id-twice", f"{replica} at {image.offset}: topic {name} has another id")
        for name, story in self.topics.items():
            if image.offset >= story.gone_at:
                if name in names and not story.is_loose:
                    self.find("came-back", f"{replica} at {image.offset}: topic {name}")
            elif image.offset >= story.told_at and not story.is_deletion_asked:
                if name not in names:
                    self.find("forgotten", f"{replica} at {image.offset}: topic {name}")
                self._check_config(name, story, image)

    def _check_config(self, name: str, story: TopicStory, image: MetadataImage) -> None:
        if image.offset < story.value_at or story.is_deletion_asked:
            return
        value = int(image.configs.of(ResourceType.TOPIC, name).get(CONFIG) or 0)
        if value < story.value and value not in story.unknown_values:
            text = f"{CONFIG} of {name} is {value} at {image.offset}, {story.value} was told"
            self.find("forgotten", text)

    def _missing_numbers(self, image: MetadataImage) -> list[str]:
        at = image.offset
        found = (
            ("the next object", image.objects.next_id, self._objects.at(at)),
            ("the next stream", image.streams.next_id, self._streams.at(at)),
            ("the next producer id", image.producer_ids, self._producers.at(at)),
        )
        lines = [f"{what} at {at} is {has}, {told} was told" for what, has, told in found if has < told]
        for broker_id, epochs in self._epochs.items():
            broker = image.brokers.get(broker_id)
            epoch = broker.epoch if broker is not None else -1
            if epoch < epochs.at(at):
                lines.append(f"broker {broker_id} at {at} has epoch {epoch}, {epochs.at(at)} was told")
        for stream_id, ends in self._ends.items():
            stream = image.streams.get(stream_id)
            if stream is not None and stream.end < ends.at(at):
                lines.append(f"stream {stream_id} at {at} ends at {stream.end}, {ends.at(at)} was told")
        for stream_id, starts in self._starts.items():
            stream = image.streams.get(stream_id)
            if stream is not None and stream.start < starts.at(at):
                lines.append(f"stream {stream_id} at {at} begins at {stream.start}, {starts.at(at)} was told")
        return lines
