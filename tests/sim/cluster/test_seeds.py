"""Drawn clusters in the suite: a fixed handful of the hunt's seeds, and replay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker import app
from millrace.broker.background.unfinished_uploads import UploadSweep
from millrace.protocol.batch_build import build_batch
from millrace.protocol.records import Record
from tests.sim import asking
from tests.sim.cluster.plan import Plan, drawn_plan
from tests.sim.cluster.run import Run, run_plan
from tests.sim.cluster.trouble import AWAY
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.node import QUIET
from tests.sim.workload import ANY_TIME

# Of each kind of log, with one controller and with three.
PLANS = {
    3: "controllers=3 brokers=3 wal=block troubles=6 batches=6 lost-disks level=3",
    6: "controllers=1 brokers=2 wal=object troubles=9 batches=6 clocks=set level=3",
    7: "controllers=3 brokers=2 wal=object troubles=10 batches=6 balanced calm clocks=set lost-disks level=2",
    8: "controllers=1 brokers=3 wal=object troubles=11 batches=6 balanced calm lost-disks level=3",
    14: "controllers=1 brokers=3 wal=quick-object troubles=8 batches=6 balanced calm level=3",
    15: "controllers=combined brokers=3 wal=quick-object troubles=9 batches=6 balanced calm level=3",
    19: "controllers=3 brokers=2 wal=shared-block troubles=4 batches=6 calm clocks=set only=owed level=3",
    20: "controllers=combined brokers=3 wal=shared-block troubles=5 batches=6 level=3",
    23: "controllers=3 brokers=4 wal=claimed-block troubles=8 batches=6 balanced calm clocks=set lost-disks "
    "level=3",
}


def test_fixed_seeds_are_the_plans_that_they_were() -> None:
    """Else they look at less than is believed; what is drawn besides has a source of its own."""
    assert {seed: str(drawn_plan(seed).without_further()) for seed in PLANS} == {
        s: f"{s} {told}" for s, told in PLANS.items()
    }


@pytest.mark.parametrize("seed", PLANS)
def test_nothing_is_found_at_fixed_seeds(seed: int) -> None:
    """Clusters under drawn trouble keep every promise, and every checker looked."""
    outcome = run_plan(drawn_plan(seed).without_further())
    assert not outcome.findings, f"{outcome.plan}: {outcome.findings[:3]}"
    assert all(outcome.looked_at.values()), outcome.looked_at


def test_a_run_repeats_itself() -> None:
    plan = drawn_plan(2).without_further()
    assert run_plan(plan).digest == run_plan(plan).digest


@pytest.mark.parametrize("is_combined", [True, False])
def test_no_broker_of_a_cluster_sweeps_uploads(monkeypatch: pytest.MonkeyPatch, is_combined: bool) -> None:
    """What nobody ends, as one of them sees it, another may: it is a duty of the controller that leads."""
    made: list[object] = []

    class Noted(UploadSweep):
        def __init__(self, *args: Any) -> None:
            made.append(args)
            super().__init__(*args)

    monkeypatch.setattr(app, "UploadSweep", Noted)
    outcome = run_plan(Plan(1, troubles=0, batches=1, is_combined=is_combined))
    assert not outcome.findings
    assert not made


def test_failovers_and_compaction_are_met() -> None:
    """Else the seeds above show little."""
    outcome = run_plan(drawn_plan(8).without_further())
    assert outcome.hits["failover: done"] >= 1
    assert outcome.hits["sets of about one size were merged"] >= 1


def test_a_node_of_both_roles_loses_its_log_directory() -> None:
    """Twice in this run; it comes back as the voter and the broker that it was."""
    outcome = run_plan(drawn_plan(130045).without_further())
    assert outcome.hits["disk lost of a controller and broker"] == 2
    assert not outcome.findings, f"{outcome.plan}: {outcome.findings[:3]}"


def test_a_log_directory_is_lost_where_clocks_were_set_ahead() -> None:
    """A node of both roles is set ahead by 400 days, writes metadata as the leader, and loses its log
    directory: it does not learn its own clock's time from the others, and deletes nothing by it."""
    outcome = run_plan(drawn_plan(210200).without_further())
    assert outcome.hits["disk lost of a controller and broker"] >= 1
    assert outcome.hits["clock set of a controller and broker"] >= 1
    assert not outcome.findings, f"{outcome.plan}: {outcome.findings[:3]}"


def test_a_broker_ends_while_its_last_seal_is_under_way() -> None:
    """A node of both roles is killed right behind its own decision to seal a partition that moves. The next
    leader commits that, and the partition goes on elsewhere: it was not taken."""
    outcome = run_plan(drawn_plan(307035).without_further())
    assert outcome.hits["absence: waited for"]
    assert not outcome.findings, f"{outcome.plan}: {outcome.findings[:3]}"


def test_a_broker_that_was_replaced_reads_no_history_to_its_clients() -> None:
    """It stood still, is fenced, and lives on; nobody can open the log that it has open. Whom it answered
    before had read to the end of that, and was told an end above it."""
    outcome = run_plan(drawn_plan(309024).without_further())
    assert outcome.hits["absence: history read"]
    assert not outcome.findings, f"{outcome.plan}: {outcome.findings[:3]}"


def test_nothing_is_acknowledged_before_the_bucket_knows_its_stream() -> None:
    """A log of objects outlives every machine: while the controllers do not reach the bucket, what opened the
    stream is not in it, and a restore from it would not know what was acknowledged."""

    async def main(loop: SimLoop) -> None:
        run = Run(loop, Plan(0, controllers=1, brokers=1, wal="object"))
        keeping = [asyncio.ensure_future(machine.keep_up()) for machine in run.machines]
        await run.all_up()
        (controller,) = run.controllers
        controller.set_faults(AWAY)
        client = run.client("client")
        topic_id = await asking.create_topic(client, "t", 1, ANY_TIME)
        batch = build_batch([Record(None, b"value", run.world.true_clock.wall_ms())])
        asked = asyncio.ensure_future(client.ask(0, asking.produce_request((topic_id, 0), batch)))
        await asyncio.sleep(4.0)
        assert not asked.done() or asked.result().responses[0].partition_responses[0].error_code
        controller.set_faults(QUIET)
        while True:
            answer = await client.ask(0, asking.produce_request((topic_id, 0), batch))
            if not answer.responses[0].partition_responses[0].error_code:
                break
            await asyncio.sleep(0.1)
        for task in keeping:
            task.cancel()

    run_simulation(main)
