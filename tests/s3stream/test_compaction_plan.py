"""Plans of compaction: a transcript of what is chosen and where it goes, and what holds for any plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from millrace.runtime.scheduling.yielding import Yielding, run_to_end
from millrace.s3stream.compaction.aged import AgedLook, plan_aged
from millrace.s3stream.compaction.choose import choose_run, choose_sets
from millrace.s3stream.compaction.config import MIB, CompactionSettings
from millrace.s3stream.compaction.plan import (
    SetPlan,
    SourceIndex,
    SourcesOverlap,
    find_trimmed,
    find_uncovered,
    plan_sets,
    streams_of,
    wanted_rows,
)
from millrace.s3stream.compaction.stream_plan import StreamPlan, plan_stream
from millrace.s3stream.ids import (
    ObjectId,
    ObjectKind,
    StreamBounds,
    StreamId,
    StreamObjectInfo,
    StreamRange,
    StreamSetInfo,
)
from millrace.s3stream.objects.format import BlockRef, encode_index, encode_row
from millrace.s3stream.objects.index import ObjectIndex
from tests import transcript

TRANSCRIPT = Path(__file__).parent.parent / "transcripts" / "compaction.txt"
MINUTE_MS = 60_000
KIB = 1 << 10


def parse_range(text: str) -> tuple[int, int, int, int]:
    """`7:10-15*64`: stream (or object), start, end, KiB."""
    name, _, rest = text.partition(":")
    span, _, size = rest.partition("*")
    start, _, end = span.partition("-")
    return int(name), int(start), int(end), int(size or 1)


def index_of(rows: Sequence[tuple[int, int, int, int]]) -> ObjectIndex:
    """Of blocks (stream, start, end, KiB) that lie side by side."""
    packed, position = b"", 0
    for stream_id, start, end, kib in rows:
        packed += encode_row(BlockRef(StreamId(stream_id), start, end, 1, position, kib * KIB))
        position += kib * KIB
    return ObjectIndex(memoryview(encode_index(packed)), position)


class Dialogue:
    """Runs one command of the transcript and tells what to print."""

    def __init__(self) -> None:
        self.settings = CompactionSettings(run_count_min=4, split_bytes=8 * MIB)
        self.sets: list[StreamSetInfo] = []
        self.indexes: dict[int, ObjectIndex] = {}
        self.bounds: dict[StreamId, StreamBounds] = {}
        self.quarantined: list[int] = []

    def say(self, command: str) -> str:
        verb, *words = command.split()
        try:
            return str(getattr(self, verb)(*words))
        except SourcesOverlap as error:
            return f"refused: {error}"

    def clear(self) -> str:
        self.__init__()  # type: ignore[misc]
        return "nothing"

    def limit(self, *words: str) -> str:
        pairs = (word.split("=") for word in words)
        self.settings = replace(self.settings, **{name: int(value) for name, value in pairs})
        return "ok"

    def sizes(self, *words: str) -> str:
        """MiB from the oldest to the newest; the run is shown in brackets."""
        sizes = [int(float(word) * MIB) for word in words]
        found = choose_run(sizes, self.settings.sources_max, 1 << 40, self.settings.run_count)
        if found is None:
            return "none"
        return " ".join([*words[: found.start], "[" + " ".join(words[found]) + "]", *words[found.stop :]])

    def set(self, object_id: str, minute: str, *rows: str) -> str:
        """A stream-set object with data of that minute."""
        index = index_of([parse_range(row) for row in rows])
        self.indexes[int(object_id)] = index
        order = len(self.sets)
        self.sets.append(
            StreamSetInfo(ObjectId(int(object_id)), index.blocks_end + 100, order, int(minute) * MINUTE_MS)
        )
        for row in rows:
            stream_id, _, end, _ = parse_range(row)
            self.bounds[StreamId(stream_id)] = StreamBounds(0, end)
        return f"{index.blocks_end // KIB} KiB"

    def trim(self, stream_id: str, start: str) -> str:
        found = self.bounds[StreamId(int(stream_id))]
        self.bounds[StreamId(int(stream_id))] = replace(found, start=int(start))
        return "ok"

    def delete(self, stream_id: str) -> str:
        del self.bounds[StreamId(int(stream_id))]
        return "ok"

    def unreadable(self, *words: str) -> str:
        self.quarantined = [int(word) for word in words]
        return "ok"

    def is_quarantined(self, one: StreamSetInfo) -> bool:
        return one.object_id in self.quarantined

    def merge(self) -> str:
        planner = partial(plan_sets, settings=self.settings, split_bytes=self.settings.split_bytes)
        return self.planned(choose_sets(self.sets, self.is_quarantined, self.settings), planner)

    def aged(self, minute: str) -> str:
        now_ms = int(minute) * MINUTE_MS
        look = AgedLook(self.settings)
        return self.planned(
            look.next_objects(self.sets, self.is_quarantined, now_ms),
            partial(plan_aged, settings=self.settings),
        )

    def due(self) -> str:
        found = AgedLook(self.settings).next_due_ms(self.sets, self.is_quarantined)
        return "never" if found is None else f"minute {found // MINUTE_MS}"

    def planned(
        self, chosen: Sequence[StreamSetInfo], planner: Callable[..., Yielding[SetPlan | None]]
    ) -> str:
        if not chosen:
            return "nothing to do"
        sources = [SourceIndex(one.object_id, self.indexes[one.object_id]) for one in chosen]
        return shown(run_to_end(planner(sources, self.bounds)))

    def stream(self, start: str, *words: str) -> str:
        """Objects of one stream: S stream objects, C composites; then what is planned for them."""
        objects = []
        for word in words:
            object_id, first, end, kib = parse_range(word[1:])
            kind = ObjectKind.COMPOSITE if word[0] == "C" else ObjectKind.STREAM
            objects.append(StreamObjectInfo(ObjectId(object_id), kind, kib * KIB, first, end))
        plan = plan_stream(objects, StreamBounds(int(start), 10**6), self.settings)
        lines = [f"dead {list(plan.dead)}"] if plan.dead else []
        lines += [f"merge {[one.object_id for one in group]}" for group in plan.merges]
        lines += [f"link {[one.object_id for one in group]}" for group in plan.links]
        return "\n".join(lines) or "nothing to do"


def shown(plan: SetPlan | None) -> str:
    if plan is None:
        return "nothing would change"
    lines = [f"of {list(plan.source_ids)}"]
    for one in plan.portions:
        where = "own object" if one.is_split else "set"
        lines.append(f"  {where}: {one.stream_id}:[{one.start},{one.end}) {one.size_bytes // KIB} KiB")
    return "\n".join(lines if plan.portions else [*lines, "  no successor"])


def test_transcript() -> None:
    """What is chosen and what is planned, as tests/transcripts/compaction.txt shows it (MILLRACE_REWRITE=1
    writes it anew)."""
    dialogue = Dialogue()
    transcript.check(TRANSCRIPT, lambda command: dialogue.say(command).splitlines())


def test_each_byte_is_written_a_few_times() -> None:
    """A thousand uploads of one size, merged whenever a run is found: few objects are left at any time, and
    each byte was written three times at most, where merging all at each look would have written it hundreds
    of times."""
    sizes: list[int] = []
    written = most = 0
    for _ in range(1000):
        sizes.append(4 * MIB)
        while (found := choose_run(sizes, 500, 1 << 50, 8)) is not None:
            merged = sum(sizes[found])
            written += merged
            sizes[found] = [merged]
        most = max(most, len(sizes))
    assert sum(sizes) == 4000 * MIB
    assert written <= 3 * 4000 * MIB
    assert most <= 4 * 7 + 1


def test_random_sizes_leave_few_objects() -> None:
    """Whatever the sizes, objects left unmerged grow in size towards the old ones."""
    chance = random.Random(7)
    sizes: list[int] = []
    for _ in range(2000):
        sizes.append(int(10 ** chance.uniform(3, 8.5)))
        while (found := choose_run(sizes, 500, 1 << 50, 8)) is not None:
            sizes[found] = [sum(sizes[found])]
        assert len(sizes) < 40


def random_sources(chance: random.Random) -> tuple[list[SourceIndex], dict[StreamId, StreamBounds]]:
    """Uploads of a few streams, some of which went into objects of their own and left a gap."""
    ends = {stream_id: chance.randrange(50) for stream_id in range(1, 9)}
    sources = []
    for number in range(chance.randint(1, 6)):
        rows = []
        for stream_id in sorted(chance.sample(sorted(ends), chance.randint(1, chance.choice([1, 2, 6])))):
            if chance.random() < 0.15:
                ends[stream_id] += chance.randint(1, 9)
            for _ in range(chance.randint(1, 3)):
                start = ends[stream_id]
                ends[stream_id] = start + chance.randint(1, 9)
                rows.append((stream_id, start, ends[stream_id], chance.choice([1, 20, 400])))
        sources.append(SourceIndex(ObjectId(number), index_of(rows)))
    bounds = {
        StreamId(stream_id): StreamBounds(chance.choice([0, 0, 20, end]), end)
        for stream_id, end in ends.items()
        if chance.random() < 0.8
    }
    return sources, bounds


def test_every_wanted_row_lies_in_one_portion() -> None:
    """Random uploads, gaps, trims, deletions and limits: portions cover the wanted rows and nothing else, a
    set holds one piece of a stream and no piece that is too large, and the check after the fact says the
    same."""
    planned = limited = 0
    for seed in range(400):
        chance = random.Random(seed)
        sources, bounds = random_sources(chance)
        settings = CompactionSettings(
            split_bytes=600 * KIB,
            streams_per_set_max=chance.choice([2, 100]),
            stream_objects_per_commit_max=chance.choice([2, 100]),
        )
        split_bytes = 0 if chance.random() < 0.3 else settings.split_bytes
        plan = run_to_end(plan_sets(sources, bounds, settings, split_bytes=split_bytes))
        if plan is None:
            continue
        planned += 1
        taken = [source for source in sources if source.object_id in plan.source_ids]
        limited += len(taken) < len(sources)
        assert [source.object_id for source in taken] == list(plan.source_ids) == list(range(len(taken)))
        rows = [ref for source in taken for ref in wanted_rows(source, bounds)]
        held = [one for one in plan.portions for ref in rows if is_in(ref, one)]
        assert len(held) == len(rows)
        assert sum(one.size_bytes for one in plan.portions) == sum(ref.size_bytes for ref in rows)
        in_set = [one.stream_id for one in plan.portions if not one.is_split]
        assert len(set(in_set)) == len(in_set)
        written = [StreamRange(one.stream_id, one.start, one.end) for one in plan.portions]
        assert run_to_end(find_uncovered(taken, bounds, written)) is None
        for place in range(len(written)):
            assert (
                run_to_end(find_uncovered(taken, bounds, written[:place] + written[place + 1 :])) is not None
            )
        if len(taken) > 1:
            assert plan.split_count < settings.stream_objects_per_commit_max
            most = max(len(streams_of([source])) for source in taken)
            assert len(in_set) <= max(settings.streams_per_set_max, most)
    assert planned > 200
    assert limited > 10


def is_in(ref: BlockRef, portion: object) -> bool:
    return (portion.stream_id, True) == (ref.stream_id, portion.start <= ref.start and ref.end <= portion.end)  # type: ignore[attr-defined]


def test_a_range_written_short_is_uncovered() -> None:
    """One offset too few at either end is found; what lies below the stream's start need not be there."""
    sources = [SourceIndex(ObjectId(1), index_of([(1, 10, 20, 1), (1, 20, 30, 1)]))]
    bounds = {StreamId(1): StreamBounds(15, 30)}
    assert streams_of(sources) == [1]
    for start, end, is_covered in ((10, 30, True), (15, 30, True), (16, 30, False), (15, 29, False)):
        found = run_to_end(find_uncovered(sources, bounds, [StreamRange(StreamId(1), start, end)]))
        assert (found is None) is is_covered
    halves = [StreamRange(StreamId(1), 20, 30), StreamRange(StreamId(1), 10, 20)]
    assert run_to_end(find_uncovered(sources, bounds, halves)) is None
    assert run_to_end(find_uncovered(sources, bounds, [])) is not None
    assert run_to_end(find_uncovered(sources, {}, [])) is None


def test_plans_and_checks_are_made_in_chunks() -> None:
    """Of thousands of rows no step looks at more than a few hundred, so that others run between."""
    rows = [(stream_id, 0, 5, 1) for stream_id in range(3000)]
    sources = [
        SourceIndex(ObjectId(n), index_of([(key, 5 * n, 5 * n + 5, 1) for key, *_ in rows])) for n in range(2)
    ]
    bounds = {StreamId(key): StreamBounds(0, 10) for key in range(3000)}
    written = [StreamRange(StreamId(key), 0, 10) for key in range(3000)]
    assert len(list(plan_sets(sources, bounds, CompactionSettings(), split_bytes=MIB))) >= 6000 // 256
    assert len(list(plan_aged(sources, bounds, CompactionSettings()))) >= 2 * 6000 // 256
    assert len(list(find_uncovered(sources, bounds, written))) >= 6000 // 256
    assert run_to_end(find_trimmed(sources, bounds)) == ()
    bounds[StreamId(7)] = StreamBounds(10, 10)
    bounds[StreamId(8)] = StreamBounds(9, 10)
    del bounds[StreamId(9)]
    assert run_to_end(find_trimmed(sources, bounds)) == (7,)


def test_a_plan_for_one_stream_is_bounded() -> None:
    """Ten thousand dead objects go a thousand at a time; small ones are merged and large ones linked so many
    at once."""
    settings = CompactionSettings(sources_max=100)

    def planned(size_bytes: int, start: int) -> StreamPlan:
        objects = [
            StreamObjectInfo(ObjectId(n), ObjectKind.STREAM, size_bytes, n, n + 1) for n in range(10_000)
        ]
        return plan_stream(objects, StreamBounds(start, 10_000), settings)

    assert len(planned(1, 9_999).dead) == 1000
    assert [len(group) for group in planned(1, 0).merges] == [100] * 100
    assert [len(group) for group in planned(100, 0).links] == []
    settings = replace(settings, split_bytes=100)
    assert [len(group) for group in planned(100, 0).links] == [5000, 5000]


def test_settings_that_could_not_work_are_refused() -> None:
    """A number below zero and a memory that holds no part."""
    for wrong in ({"split_bytes": -1}, {"memory_bytes": MIB}):
        with pytest.raises(ValueError, match="out of bounds"):
            CompactionSettings(**wrong)
