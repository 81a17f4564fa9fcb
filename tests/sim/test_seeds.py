"""Drawn plans in the suite: a fixed handful of the hunt's seeds, replay in another process, and plans as
text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.sim.__main__ import report
from tests.sim.bugs import BUGS
from tests.sim.forks import run_all
from tests.sim.hunt import CRASH_MUST_HIT, FOR_LOSSES_ALONE, Tally, drawn_plan, minimised
from tests.sim.plan import EVENTS, OBJECT_WALS, Plan, Strike, parse_plan
from tests.sim.run import Outcome, Run, run_plan
from tests.sim.story import tell

ROOT = Path(__file__).resolve().parents[2]
AT_A_TIME = 4
SEEDS_MAX = 12
FOUND_WAL = "weather=found wal fate=any settings={} cast=plain batches=4"


@pytest.mark.parametrize("first", range(500, 500 + 6 * AT_A_TIME, AT_A_TIME))
def test_nothing_is_found_at_fixed_seeds(first: int) -> None:
    """Nodes under drawn weather, strikes and settings keep every promise, and every probe and checker
    looked."""
    tally: Tally[Outcome] = Tally()
    plans = [drawn_plan(number) for number in range(first, first + AT_A_TIME)]
    if not any({*OBJECT_WALS} & set(plan.settings.split("+")) for plan in plans):
        plans[-1] = replace(
            plans[-1], settings="object wal"
        )  # whatever is drawn, both kinds of log are looked at
    for outcome in run_all(iter(plans), 2):
        tally.add(outcome)
    assert not tally.failed, "\n".join(f"{outcome.plan}: {outcome.findings[:3]}" for outcome in tally.failed)
    assert tally.hits["strike while it serves"]
    tally.leave_out(FOR_LOSSES_ALONE)
    assert all(tally.looked_at.values()), tally.looked_at


def test_a_file_that_a_killed_process_made_is_there_after_a_power_cut() -> None:
    """The kill comes between the making of the WAL's file and the sync of its folder; the next node
    acknowledges in it, and loses power."""
    outcome = run_plan(parse_plan("seed=41086 weather=calm fate=any batches=10 kill@name8 cut@turn8046"))
    assert outcome.hits["strike at: file"]
    assert outcome.hits["cut"]
    assert not outcome.findings, outcome.findings


def test_a_clock_that_was_ahead_for_a_moment_deletes_nothing_after_a_restore() -> None:
    """Metadata is stamped while the wall clock is days ahead; then the log directory is lost, and restored
    from what is saved of it."""
    outcome = run_plan(
        parse_plan(
            "seed=741761 weather=lost log+slow reader+clock ahead fate=holes batches=6 cut@crowd26 cut@again1"
        )
    )
    assert outcome.hits["weather: lost log"]
    assert outcome.hits["weather: clock ahead"]
    assert not outcome.findings, outcome.findings


def test_a_client_whose_producers_take_its_memory_is_served_again() -> None:
    """Their states could not go to the log when there were too many: nothing was durable yet. Then they can,
    and new producers have a place."""
    cast = "plain+doubler+reader+rereader+committer+trimmer+churner+gremlin"
    words = (
        f"seed=740339 weather=calm fate=drop settings=few hot producers cast={cast} batches=56 kill@seldom4"
    )
    outcome = run_plan(parse_plan(words))
    assert not outcome.findings, outcome.findings


def test_a_late_put_of_the_dead_is_void_before_a_stream_is_closed() -> None:
    """A log of objects without conditional writes: recovery reads to its end, closes the streams, and is
    killed. Meanwhile an object of the life before has landed behind that end; some of its records belong to
    streams that are closed, others would be taken."""
    cast = "idempotent+plain+burst+rereader+member+trimmer+churner+gremlin"
    hits: Counter[str] = Counter()
    for number, writes in ((86410, (32, 38, 45, 70)), (86413, (20, 33, 36, 72))):
        strikes = " ".join(f"cut@write{write}" for write in writes)
        words = (
            f"seed={number} weather=full bucket fate=tear settings=reserved object wal cast={cast} "
            f"batches=7 {strikes}"
        )
        outcome = run_plan(parse_plan(words))
        assert not outcome.findings, outcome.findings
        hits += outcome.hits
    assert hits["LATE_OF_THE_DEAD"]


def test_duplicates_of_the_log_count_among_its_puts() -> None:
    """A log of objects on a slow store: what is put a second time takes the place of an upload that would
    begin."""
    words = (
        "seed=18 weather=slow store+cut net fate=drop settings=early splits+object wal batches=5 "
        "kill@turn5418"
    )
    outcome = run_plan(parse_plan(words))
    assert not outcome.findings, outcome.findings


@pytest.mark.parametrize(
    "words",
    [
        "seed=400664 weather=store away+replaced+deaf net fate=any settings=own objects+small wal+object wal "
        "cast=idempotent+plain+burst+doubler+rereader+corruptor+trimmer+gremlin batches=10 cut@promise24 "
        "kill@command134 cut@turn908 kill@seldom5",
        "seed=402004 weather=lost races+cut net fate=tear settings=small uploads+small merges+quick object "
        "wal "
        "cast=idempotent+burst+doubler+reader+committer+member+trimmer+churner batches=4 fail@write10",
    ],
    ids=["stopped as it is replaced", "a rival in several slots"],
)
def test_a_world_of_many_misfortunes_is_sound(words: str) -> None:
    """A process is told to stop in the instant in which it is replaced; a rival is first in several slots,
    and is one owner all the same."""
    outcome = run_plan(parse_plan(words))
    assert not outcome.findings, outcome.findings[:3]


def test_a_plan_is_text_and_back() -> None:
    """What a finding prints is the plan that found it; plans differ from seed to seed."""
    plans = [drawn_plan(number) for number in range(300)]
    assert [parse_plan(str(plan)) for plan in plans] == plans
    assert len(set(plans)) == len(plans)
    assert {strike.kind for plan in plans for strike in plan.strikes} == set(EVENTS)


def digest_in_a_process(plan: Plan, hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    words = [sys.executable, "-m", "tests.sim", "one", str(plan)]
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    found = re.search(r"\b[0-9a-f]{64}\b", done.stdout)
    assert found is not None, done.stdout
    return found[0]


def test_a_drawn_plan_is_the_same_run_in_another_process() -> None:
    """Weather, settings and a kill between two callbacks included, down to the last byte on the wire; here it
    ran after other runs, there first."""
    plan = Plan(
        "twice",
        (Strike("turn", 3000, "kill"), Strike("change", 9)),
        "any",
        "rough store+cut net",
        "object wal",
        batches=5,
    )
    outcome = run_plan(plan)
    assert not outcome.findings
    assert outcome.hits["strike at a turn"] == 1
    assert [digest_in_a_process(plan, hash_seed) for hash_seed in ("1", "2")] == [outcome.digest] * 2


def test_a_finding_becomes_a_short_story() -> None:
    """What does not matter to a finding is left out of its plan; the story tells the strike and what came to
    light."""
    bare = Plan("story", (), "drop", "full bucket+slow net", "small blocks+one write", "burst+reader", 4)
    plan = Plan(
        bare.seed, (Strike("write", 63),), bare.fate, bare.weather, bare.settings, bare.cast, bare.batches
    )
    with BUGS["offsets-again"].planted():
        outcome = minimised(run_plan(plan))
    assert outcome.findings
    assert (outcome.plan.weather, outcome.plan.settings) == ("calm", "plain")
    story = "\n".join(tell(outcome.lines))
    assert "node1 starts, life 2" in story
    assert "FOUND" in story


def test_a_tally_names_what_was_never_met() -> None:
    """A fault, a crash point or a checker with a count of nought fails a hunt."""
    tally: Tally[Outcome] = Tally()
    tally.hits["cut"] = 1
    tally.looked_at.update({"OnceInOrder": 0, "RangesJoin": 3})
    assert tally.missing(("cut", "torn")) == ["torn", "OnceInOrder"]


@pytest.mark.parametrize(
    "name", ["strike at: multipart_part sent", "strike at: CommitCompaction carried out"]
)
def test_an_enumeration_fails_for_a_point_that_was_never_struck(name: str) -> None:
    """Its exit code says so, though nothing was found."""
    tally: Tally[Outcome] = Tally(runs=1, hits=Counter(CRASH_MUST_HIT))
    assert report(tally, CRASH_MUST_HIT, 1.0) == 0
    del tally.hits[name]
    assert report(tally, CRASH_MUST_HIT, 1.0) == 1


def test_a_node_that_is_killed_as_its_work_ends_comes_up_again() -> None:
    """Each phase of a run is stopped in order, whatever came in its last step."""

    def prepare(run: Run) -> None:
        look = run._look

        async def look_and_kill(phase: str) -> None:
            await look(phase)
            run.node.kill()

        run._look = look_and_kill  # type: ignore[method-assign]

    outcome = run_plan(Plan("end", cast="plain", batches=2), prepare)
    assert not outcome.findings
    assert outcome.hits["kill"] == 3


@pytest.mark.parametrize("settings", ["object wal", "reserved object wal"])
def test_rot_in_a_log_of_objects_is_refused_by_its_name(settings: str) -> None:
    """A byte of an object of the log is wrong at one of three starts: the start is refused and names the
    object, or nobody needs it. Mended, all that was acknowledged is there."""
    hits: Counter[str] = Counter()
    strikes = tuple(Strike("turn", turn, "kill") for turn in (900, 1500, 2100))
    for number in range(4):
        outcome = run_plan(Plan(f"rot {number}", strikes, "any", "wal rot", settings, "plain+gremlin", 5))
        assert not outcome.findings, outcome.findings[:3]
        hits += outcome.hits
    assert hits["ROT"]
    assert hits["damaged log of objects refused"]


def test_a_node_that_loses_a_race_ends_and_loses_nothing() -> None:
    """A later owner has sealed the slot that a conditional put was for, and died: the process ends, and the
    next one goes on from there."""
    hits: Counter[str] = Counter()
    for number in range(3):
        outcome = run_plan(
            Plan(f"race {number}", (), "any", "lost races", "object wal", "plain+burst+gremlin", 8)
        )
        assert not outcome.findings, outcome.findings[:3]
        hits += outcome.hits
    assert hits["a rival was first"]
    assert hits["ended for a rival"]


def test_a_stray_write_of_the_log_is_refused() -> None:
    """A write of the log lands elsewhere on the device: a start that can tell it refuses. Set right, all that
    was acknowledged is there."""
    hits: Counter[str] = Counter()
    for number in (3, 4):
        outcome = run_plan(
            Plan(f"stray {number}", (), "any", "stray write", "plain", "plain+burst+idempotent+reader", 8)
        )
        assert not outcome.findings, outcome.findings[:3]
        hits += outcome.hits
    assert hits["misdirect"]
    assert hits["stray write refused"]


@pytest.mark.parametrize("settings", OBJECT_WALS)
def test_a_process_that_was_replaced_and_lives_on_is_fenced(settings: str) -> None:
    """Its volume and address are another machine's; it has clients and its way to the store. Whatever it
    acknowledges is there, once."""
    hits: Counter[str] = Counter()
    for number in (0, 2):
        outcome = run_plan(
            Plan(f"replaced {number}", (), "any", "replaced", settings, "plain+burst+idempotent+reader", 8)
        )
        assert not outcome.findings, outcome.findings[:3]
        hits += outcome.hits
    assert hits["replaced process fenced"] == 2
    assert hits["replaced process frozen"] == 1


def test_what_a_replaced_process_put_behind_a_hole_may_go() -> None:
    """Under a reservation the newer owner deletes what lies behind the end that it found, though the slot in
    which the log ended is filled by then: nobody was told of either."""
    cast = "idempotent+reader+rereader+corruptor+committer+member+trimmer+gremlin"
    settings = "small blocks+page cache+small merges+small parts+reserved object wal"
    weather = "rough store+clock back+clock drift+replaced"
    words = (
        f"seed=201245 weather={weather} fate=tear blocks settings={settings} cast={cast} batches=6 "
        "cut@store555"
    )
    outcome = run_plan(parse_plan(words))
    assert not outcome.findings, outcome.findings[:3]


@pytest.mark.parametrize("settings", ["plain", "object wal"])
def test_what_an_operator_gives_up_is_all_that_is_lost(settings: str) -> None:
    """The log is damaged, the start refused, `wal.corruption` skips or truncates: all else is there, and
    leader epochs tell of it."""
    hits: Counter[str] = Counter()
    for seed in (0, 3, 5):
        outcome = run_plan(
            Plan(f"{seed}", (), "any", "salvage", settings, "plain+burst+idempotent+reader", 8)
        )
        assert not outcome.findings, outcome.findings[:3]
        hits += outcome.hits
    assert hits["salvage: refused"]
    assert hits["salvage: records given up"]


@pytest.mark.parametrize("settings", ["plain", "object wal"])
def test_a_lost_log_directory_is_restored(settings: str) -> None:
    """From the bucket, with the log there or gone: what the restore does not name is there, and nothing is
    given out again."""
    hits: Counter[str] = Counter()
    for seed in range(3):
        outcome = run_plan(Plan(f"{seed}", (), "any", "lost log", settings, "plain+idempotent+reader", 8))
        assert not outcome.findings, outcome.findings[:3]
        hits += outcome.hits
    assert hits[f"restore: with a log of {'blocks' if settings == 'plain' else 'objects'}"]
    assert settings != "plain" or hits["restore: without a log"]


def test_an_older_bucket_is_told_after_a_restore_without_its_log() -> None:
    """Log directory and WAL were lost, the loss accepted, and a start served; then a copy of the bucket of
    before is put back."""
    words = (
        "seed=731175 weather=strict store+older bucket+lost log fate=keep settings=many snapshots "
        "cut@write414 cut@turn5016 kill@write236"
    )
    outcome = run_plan(parse_plan(words))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["older bucket refused"]
    assert outcome.hits["restore: without a log"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("seed=2 weather=older pair fate=any", "older log directory and bucket refused"),
        (
            "seed=1 weather=older log fate=any settings=object wal",
            "older log directory refused, with a log of objects",
        ),
        ("seed=1 weather=older wal fate=any settings=object wal", "older WAL refused, with a log of objects"),
        ("seed=2 weather=other kind fate=any", "new WAL of the other kind refused"),
        ("seed=3 weather=other wal fate=any settings=object wal", "former WAL refused"),
    ],
)
def test_a_place_that_is_not_the_nodes_own_is_refused(words: str, what: str) -> None:
    """And what a start gives up by the operator's word is what it says, partition by partition."""
    outcome = run_plan(parse_plan(f"{words} cast=plain+reader batches=8"))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits[what]


def test_a_log_directory_is_compared_up_to_what_a_power_cut_tore() -> None:
    """The metadata log ends with bytes that are no batch, as the power cut left them, when a WAL is found."""
    words = (
        "seed=872830 weather=strict store+found wal fate=tear batches=8 "
        "cast=idempotent+burst+doubler+reader+rereader+member+churner+gremlin "
        "kill@crowd19 cut@again4 cut@write166 cut@write186 kill@write220 cut@write248 kill@change71"
    )
    outcome = run_plan(parse_plan(words))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["torn"]


def test_a_former_wal_that_was_copied_early_is_judged_as_it_was_copied() -> None:
    """The copy was taken before the log's last object was put; whoever goes on with it counts what it has,
    and that is no wrong link."""
    words = (
        "seed=730012 weather=slow disk+lost answers+other wal fate=holes settings=large uploads+quick "
        "object wal batches=5"
    )
    outcome = run_plan(parse_plan(f"{words} kill@store192 fail@write19 cut@write40 kill@write197"))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["another WAL: loss accepted"]


def first_that_hits(name: str, words: str, prepare: Callable[[Run], None] = lambda run: None) -> Outcome:
    """The first of a few seeds whose run comes that far: where a start takes another turn than it did, other
    seeds do. None of them may find anything."""
    for seed in range(1, SEEDS_MAX + 1):
        outcome = run_plan(parse_plan(f"seed={seed} {words}"), prepare)
        assert not outcome.findings, (seed, outcome.findings[:3])
        if outcome.hits[name]:
            return outcome
    raise AssertionError(f"{name}: in none of {SEEDS_MAX} seeds")


@pytest.mark.parametrize("settings", ["large uploads", "object wal"])
def test_the_current_wal_is_the_older_one_where_an_older_copy_went_on(settings: str) -> None:
    """Both are accepted, one after the other: nothing of what was given up comes back, and consumers that
    check epochs notice."""
    outcome = first_that_hits("current WAL found again: loss accepted", FOUND_WAL.format(settings))
    assert outcome.hits["older WAL to accept: loss accepted"]
    assert outcome.looked_at["FollowersNotice"]


@pytest.mark.parametrize("settings", ["large uploads", "object wal"])
def test_a_start_that_is_killed_before_it_told_of_an_accepted_loss_leaves_it_to_the_next(
    settings: str,
) -> None:
    """It had opened the older WAL, and emptied it: that WAL's last owner is as new as any by then."""

    def prepare(run: Run) -> None:
        node, tell = run.node, run.node.on_command
        asked = 0

        def kill_the_second(name: str, moment: str) -> None:
            nonlocal asked
            tell(name, moment)
            asked += (name, moment) == ("AcceptWalLoss", "sent")
            if asked == 2 and (name, moment) == ("AcceptWalLoss", "sent"):
                node.kill()

        node.on_command = kill_the_second  # type: ignore[method-assign]

    outcome = first_that_hits("current WAL found again: loss accepted", FOUND_WAL.format(settings), prepare)
    assert outcome.hits["command: AcceptWalLoss"] == 2


def test_two_restores_of_one_copy_give_no_leader_epoch_twice() -> None:
    """All three places are lost, twice, and the same copy of the bucket is put back: whoever read in between
    notices."""
    outcome = run_plan(parse_plan("seed=2 weather=same copy fate=any cast=plain batches=4"))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["restore: from a copy of the bucket"] == 2
    assert outcome.hits["restore: from the same copy again"]
    assert outcome.looked_at["FollowersNotice"]


@pytest.mark.parametrize("seed", [32, 45, 60])
def test_a_clone_that_came_while_the_first_one_committed_serves_nothing(seed: int) -> None:
    """On the log of objects that both share, between its look at the bucket and its claim: what the first one
    trimmed for that would be lost. A restore from the bucket has all that was acknowledged."""
    words = f"seed={seed} weather=cloned+rough store fate=any settings=reserved object wal batches=10"
    outcome = run_plan(parse_plan(words))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["cloned: refused once it had claimed"]
    assert outcome.hits["restore: with a log of objects"]


@pytest.mark.parametrize("settings", ["large uploads", "object wal"])
def test_a_clone_takes_over_and_the_first_one_ends(settings: str) -> None:
    """Both run, on copies of one disk and on one bucket: what the first one acknowledged is named by it, or
    there."""
    outcome = run_plan(parse_plan(f"seed=0 weather=cloned fate=any settings={settings} cast=plain batches=4"))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["cloned: acknowledged by the first one"]
    assert outcome.hits["cloned: the first one ended"]
    assert settings == "object wal" or outcome.hits["cloned: named by the first one"]
