"""What happened in a soak, and what is judged of it. Pure: soak.py tells it.

Every part of the load has to get on between one look and the next, and memory must not grow: what is allowed
grows with the time, more slowly than a leak does.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from tests.bench.flat import Bounds, Flatness, judge
from tests.bench.report import Row

MIB = 1 << 20
MEMORY_BYTES = 256 * MIB
# Beside what memory.max.bytes bounds: interpreter and code (35 MiB), the allocator's slack, WAL blocks and
# objects under way.
BESIDE_BYTES = 192 * MIB
# One or two steps of the allocator's, by the line; 20 MiB were seen once in ten minutes.
STEPS_BYTES = 32 * MIB
# What memory may still settle after the warm-up, the less the longer that was; and what it may rise by for
# ever, steadily.
SETTLING_BYTES, SETTLING_S = 4 * MIB, 30.0
RISE_BYTES_A_MINUTE = MIB // 2
# Looks in a row at which a part may have done nothing: topics are made by turns, and a group reads nothing
# while its members change.
EMPTY_LOOKS_MAX = {"large": 0, "small": 0, "fetch": 0, "topics": 4, "group": 7}
BEHIND_S_MAX = 2.0
# From one return of the group's member to the next.
REJOIN_S_MAX = 20.0


def bounds_of(warm_s: float, measured_s: float) -> Bounds:
    """Ten minutes find a leak of 0.6 MiB a minute, twelve seconds one of 0.5 MiB a second."""
    steady = SETTLING_BYTES * SETTLING_S / (SETTLING_S + warm_s) + RISE_BYTES_A_MINUTE * measured_s / 60
    return Bounds(MEMORY_BYTES + BESIDE_BYTES, STEPS_BYTES, steady)


@dataclass(frozen=True, slots=True)
class Look:
    """What every part had done since the last look; `behind` in records that readers of the large partitions
    had not read."""

    seconds: float
    done: dict[str, int]
    behind: int


@dataclass
class Story:
    """Samples of memory are (seconds since the start, bytes)."""

    records_a_request: int = 1
    seconds: float = 0.0
    warm_s: float = 0.0
    memory: list[tuple[float, int]] = field(default_factory=list)
    disk_bytes: list[int] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    bytes_in: int = 0
    latencies_s: list[float] = field(default_factory=list)  # one look's median each
    churned: int = 0
    left_behind: int = 0  # records, when the load had ended and the readers had not yet
    rejoins: int = 0

    def total(self, part: str) -> int:
        return sum(look.done[part] for look in self.looks)

    @property
    def bytes_a_second(self) -> float:
        return self.bytes_in / self.seconds

    def flatness(self) -> Flatness:
        samples = [sample for sample in self.memory if sample[0] >= self.warm_s]
        return judge(samples, bounds_of(self.warm_s, samples[-1][0] - samples[0][0]))

    def eighths(self) -> list[int]:
        """The median of each eighth of the samples."""
        step = len(self.memory) // 8
        return [
            int(statistics.median(size for _, size in self.memory[at : at + step]))
            for at in range(0, 8 * step, step)
        ]

    def stood_still(self, part: str) -> int:
        """The most looks in a row at which a part had done nothing."""
        most = count = 0
        for look in self.looks:
            count = 0 if look.done[part] else count + 1
            most = max(most, count)
        return most

    def behind_s(self) -> float:
        """How long the producers had taken to write what was not yet read, at half of the looks."""
        return statistics.median(
            look.behind * look.seconds / max(1, look.done["large"] * self.records_a_request)
            for look in self.looks
        )

    def rejoins_min(self) -> int:
        return max(1, int(self.seconds / REJOIN_S_MAX))


def rows(story: Story, least_bytes_a_second: float = 0) -> list[Row]:
    """Figures and verdicts; a rate is judged where one is asked for."""
    return [*of_progress(story, least_bytes_a_second), *of_readers(story), *of_room(story)]


def of_progress(story: Story, least_bytes_a_second: float) -> list[Row]:
    rate, least = story.bytes_a_second / 1e6, least_bytes_a_second / 1e6
    requests = (story.total("large") + story.total("small")) / story.seconds
    found = [
        Row("time", f"{story.seconds:.0f} s", f"first {story.warm_s:.0f} s are warm-up"),
        Row("produced", f"{story.bytes_in / 1e9:.2f} GB", f"{requests:,.0f} requests/s"),
        Row(
            "  a second",
            f"{rate:.0f} MB/s",
            "",
            f"{least:.0f} MB/s" if least else "",
            rate >= least if least else None,
        ),
        Row("  median wait of a request", f"{1000 * statistics.median(story.latencies_s):.1f} ms"),
    ]
    for part, most in EMPTY_LOOKS_MAX.items():
        empty, total = story.stood_still(part), story.total(part)
        found.append(
            Row(
                f"  looks without {part}",
                f"{empty}",
                f"{total:,} in all",
                f"at most {most}",
                empty <= most and total > 0,
            )
        )
    return found


def of_readers(story: Story) -> list[Row]:
    behind_s, left, least = story.behind_s(), story.left_behind, story.rejoins_min()
    return [
        Row(
            "tail readers behind", f"{behind_s:.2f} s", "", f"{BEHIND_S_MAX:.0f} s", behind_s <= BEHIND_S_MAX
        ),
        Row("  at the end", f"{left} records", "when nothing was written any more", "none", left == 0),
        Row(
            "a member came back and read",
            f"{story.rejoins} times",
            "",
            f"{least} times",
            story.rejoins >= least,
        ),
    ]


def of_room(story: Story) -> list[Row]:
    found = story.flatness()
    bounds = [f"{size / MIB:.1f} MiB" for size in (found.bounds.grown_bytes, found.bounds.steady_bytes)]
    both = f"{story.memory[0][1] / MIB:.0f}, {story.memory[-1][1] / MIB:.0f} MiB"
    peak, bound = f"{found.peak_bytes / MIB:.0f} MiB", f"{found.bounds.peak_bytes / MIB:.0f} MiB"
    return [
        Row("disk, highest", f"{max(story.disk_bytes) / MIB:.0f} MiB", "WAL, objects and metadata"),
        Row("memory, first and last", both, f"memory.max.bytes {MEMORY_BYTES / MIB:.0f} MiB"),
        Row("  by eighths, MiB", ", ".join(f"{size / MIB:.0f}" for size in story.eighths())),
        Row("memory, highest", peak, "", bound, found.is_low),
        Row("  growth by the line", f"{found.grown_bytes / MIB:+.1f} MiB", "", bounds[0], found.is_level),
        Row("  steady growth", f"{found.steady_bytes / MIB:+.2f} MiB", "", bounds[1], found.is_steady),
    ]
