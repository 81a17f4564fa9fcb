"""Plan: what a run of a cluster is made of, drawn of a hunt's seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace.kraft.tables.features import MILLRACE_VERSION_LEVEL, OWED_RANGES_LEVEL
from millrace.runtime.rand import Rand
from tests.sim.cluster.strikes import Strike, draw_strikes

WALS = {
    "block": "0@file:///data/wal?capacity=512KiB",
    "object": "0@mem://wal?capacity=512KiB",
    "quick object": "0@mem://wal?capacity=384KiB&batchInterval=0",
    "shared block": "0@file:///shared/wal{node_id}?capacity=512KiB",
    "claimed block": "0@file:///shared/wal{node_id}?capacity=512KiB&fencing=claim",
}
DRAWN = ("block", "object", "quick object", "shared block")
SHARED, CLAIMED = "shared block", "claimed block"
BEFORE_OWED_RANGES = OWED_RANGES_LEVEL - 1  # clusters of an earlier release that were not upgraded yet
OWN_DISK = "block"  # the log that nobody but its node reaches
OF_BLOCKS = (OWN_DISK, SHARED, CLAIMED)
RIGHT, APART, SET = CLOCKS = ("right", "apart", "set")
APART_MS, DRIFT_PPM = 2 * 86_400_000, 1_000  # at most, ahead or behind; less than what retention keeps


@dataclass(frozen=True)
class Plan:
    """`is_combined`: each broker is a controller too; `controllers` says nothing then. `is_balanced`: the
    balancer looks all the time. `level`: of millrace.version; below OWED_RANGES_LEVEL streams that move are
    uploaded first. `only_trouble`: kinds of trouble that stand in the place of the others. `is_calm`: clients
    pause between requests, and brokers between uploads, so that a run takes a third of the CPU, and logs lie
    idle now and then, or hold more. `clocks`: of
    machines: right, up to two days apart, or, besides, set while they run. `loses_disks`: log directories.

    Beside all of it: how often the network falls in halves, where processes are struck at an await, and how
    many write-ahead logs are lost, or out of reach."""

    seed: int
    controllers: int = 1
    brokers: int = 3
    wal: str = "object"
    troubles: int = 8
    batches: int = 6
    is_combined: bool = False
    is_balanced: bool = False
    level: int = MILLRACE_VERSION_LEVEL
    only_trouble: str = ""
    is_calm: bool = False
    clocks: str = RIGHT
    loses_disks: bool = False
    splits: int = 0
    strikes: tuple[Strike, ...] = ()
    lost_logs: int = 0

    def without_further(self) -> Plan:
        """As it was before the network fell in halves, and so on."""
        return replace(self, splits=0, strikes=(), lost_logs=0)

    def __str__(self) -> str:
        controllers = "combined" if self.is_combined else self.controllers
        only = f" only={self.only_trouble}" if self.only_trouble else ""
        return (
            f"{self.seed} controllers={controllers} brokers={self.brokers} "
            f"wal={self.wal.replace(' ', '-')} troubles={self.troubles} batches={self.batches}"
            f"{' balanced' * self.is_balanced}{' calm' * self.is_calm}"
            f"{f' clocks={self.clocks}' * (self.clocks != RIGHT)}{' lost-disks' * self.loses_disks}"
            f"{only} level={self.level}"
            f"{f' splits={self.splits}' * (self.splits > 0)}"
            f"{f' lost-logs={self.lost_logs}' * (self.lost_logs > 0)}"
            f"{''.join(f' {strike}' for strike in self.strikes)}"
        )


def drawn_plan(seed: int) -> Plan:
    """The figures of a hunt's seed. What is drawn besides comes from a source of its own, so that all else
    of the plan stays what it was."""
    plan = Plan(seed, (1, 3)[seed % 2], 2 + seed // 2 % 3, DRAWN[seed // 6 % len(DRAWN)], 3 + seed % 9)
    if plan.wal == SHARED and Rand(f"fencing of {seed}".encode()).below(2):
        plan = replace(plan, wal=CLAIMED)
    if plan.wal == SHARED and Rand(f"only trouble of {seed}".encode()).below(2):
        plan = replace(plan, only_trouble="owed")
    is_before = seed % 3 == 1 and not plan.only_trouble
    level = BEFORE_OWED_RANGES if is_before else MILLRACE_VERSION_LEVEL
    is_calm = Rand(f"calm of {seed}".encode()).below(4) > 0
    plan = replace(plan, is_balanced=seed % 7 < 3, level=level, is_calm=is_calm)
    clocks = CLOCKS[Rand(f"clocks of {seed}".encode()).below(len(CLOCKS))]
    loses_disks = not plan.only_trouble and Rand(f"lost disks of {seed}".encode()).below(3) == 0
    plan = replace(plan, clocks=clocks, loses_disks=loses_disks)
    if plan.brokers == 4 and Rand(f"brokers of {seed}".encode()).below(4) == 0:
        plan = replace(plan, brokers=5)
    plan = replace(plan, brokers=3, is_combined=True) if seed % 5 == 0 else plan
    return with_further(plan)


def with_further(plan: Plan) -> Plan:
    """Half of the plans fall in halves, five of six are struck, and of those whose logs are of blocks half
    lose some."""
    rand = Rand(f"further faults of {plan.seed}".encode())
    splits = (0, 0, 1, 2)[rand.below(4)]
    strikes = draw_strikes(rand, (0, 1, 2, 3, 4, 6)[rand.below(6)])
    lost_logs = (0, 0, 1, 2)[rand.below(4)] if plan.wal in OF_BLOCKS else 0
    return replace(plan, splits=splits, strikes=strikes, lost_logs=lost_logs)
