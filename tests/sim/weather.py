"""What the edges do to a run besides its strikes. Each kind of weather begins at a time drawn from the run's
seed and ends before the quiet: then progress is demanded. Several may come together, joined with "+" in a
plan.

    rough store    every fault of the object store, a few in a hundred requests, slow answers
    slow store     each request takes up to a second
    strict store   five requests a second, the others are told to slow down
    store away     no request is answered for two seconds
    full bucket    puts are refused for lack of room for two seconds
    rot            a byte of some objects is wrong for half a second: reads of them may fail, none may show it
    full disk      the machine's disk takes a few hundred bytes more, then nothing, for two seconds; a start
                   meanwhile may fail
    slow disk      each operation takes up to 60 ms
    lost races     of the node's conditional puts some lose: a later owner of its log of objects was first,
                   and died; the node has to end
    replaced       the machine's volume and address go to another machine, while the process lives on, or is
                   frozen and wakes: with its clients and its way to the store, without its controller
    cloned         the machine's volume is copied while the process runs, and its address goes to another
                   machine with the copy; the first one lives on with its own disk and a client, or is halted
                   and wakes; it has to end, and the clone to go on
    stray write    a write of the log lands elsewhere on the device and reports success: what is lost and
                   overwritten is found at the next start
    salvage        a byte of the log's records is wrong at one start, which refuses; then wal.corruption is
                   skip, or truncate, for one start
    lost log       the log directory is lost, half the time a log of blocks with it, and restored from the
                   bucket
    wal rot        a byte of the log, or of an object of it, is wrong at one start: it is read around, or
                   refused by its name and mended
    older log      a start finds an older copy of its log directory, is refused, and finds the right one again
    older wal      the same of the WAL's volume, or of the objects of a log of objects
    older bucket   a start finds an older copy of its bucket (half the time a log of objects is in another
                   bucket and stays), is refused, and finds the right one again
    wrong bucket   the same of an emptied bucket, or of another cluster's
    older pair     the same of log directory and bucket at once, beside the WAL of now
    other wal      a start finds a new WAL, another node's, or one that the node had before, and is refused;
                   then it finds the right one, or wal.lost.accept=true
    other kind     the same of a log of objects where the node's is of blocks, or of blocks where it is of
                   objects: a new one, or one that the node had before
    found wal      a start finds an older copy of its WAL, as an earlier owner left it, is refused, and finds
                   wal.lost.accept=true; a later one finds the WAL that the copy took the place of, is
                   refused, and finds wal.lost.accept=true again, or the one that went on
    same copy      all three places are lost, the bucket is put back from a copy, and the log directory
                   restored from it: twice, from one copy
    slow net       every piece takes up to 60 ms
    cut net        a client and the node do not hear of each other for a while
    deaf net       the node hears a client, which does not hear the node
    slow reader    clients stop reading
    lost answers   the controller does what it is asked, and who asked is not told
    wrong clock    a start finds the clock days ahead, or hours or years back; half the time it is set right
                   later
    clock ahead    somebody sets the clock some hours forward
    clock back     ... or back
    clock drift    the clock runs a twentieth too fast, or too slow, all the time
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from millrace.kraft.tables.objects import ObjectState
from millrace.runtime.rand import Rand
from millrace.s3stream.objects.keys import parse_object_key
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    RING_START,
    BlockHeader,
    Geometry,
    choose_device_header,
    decode_block_header,
    decode_device_header,
)
from millrace.wal.config import ObjectWalSettings
from millrace.wal.object.layout import HEADER_BYTES, root_key
from millrace.wal.record import RECORD_HEADER_BYTES
from tests.sim.disk import Misdirect, SimFile
from tests.sim.node import ASTRAY, QUIET, SimNode
from tests.sim.objectstore import StoreFaults
from tests.sim.older_wal import OlderWal
from tests.sim.rival import Rival
from tests.sim.salvage import SOUND, blocks_from
from tests.sim.settings import WAL_FILE
from tests.sim.strange import ANOTHER, EMPTIED, OLDER, OlderPair, OlderPlace, StrangeBucket, StrangePlace
from tests.sim.strange_wal import WalMove, drawn_place, with_the_other_kind
from tests.sim.world import World

ROUGH = StoreFaults(
    refused=80,
    throttled=60,
    lost_request=60,
    lost_answer=80,
    late=80,
    latency_ms=(1, 150),
    timeout_ms=400,
    late_ms=(0, 3_000),
    list_ms=(100, 1_500),
)
SLOW = StoreFaults(latency_ms=(100, 1_000), timeout_ms=2_000)
STRICT = StoreFaults(latency_ms=(1, 12), timeout_ms=2_000, requests_per_s_max=5)
LASTS_S = 2.0
KILLS_MAX = 6
LOST_RACES = 40  # in thousandths
WRONG_MS = (2 * 3_600_000, 8 * 86_400_000, 365 * 86_400_000, -8 * 3_600_000, -365 * 86_400_000)
JUMPS_MS = (2 * 3_600_000, 8 * 3_600_000, 5 * 86_400_000)

Blow = Callable[[World, SimNode, Rand], Awaitable[None]]


async def blow(weather: str, world: World, node: SimNode) -> None:
    """Returns when all of it is over."""
    names = [name for name in weather.split("+") if name != "calm"]
    await asyncio.gather(*(_blow_one(name, world, node) for name in names))


async def _blow_one(name: str, world: World, node: SimNode) -> None:
    rand = world.rand.split(f"weather {name}")
    await asyncio.sleep((50 + rand.below(500)) / 1000)
    world.hits[f"weather: {name}"] += 1
    world.trace.note("weather", name, "begins")
    await WEATHERS[name](world, node, rand)
    world.trace.note("weather", name, "ends")


def of_store(faults: StoreFaults) -> Blow:
    async def blow_one(world: World, node: SimNode, rand: Rand) -> None:
        node.set_store_faults(faults)
        await asyncio.sleep(LASTS_S)
        node.set_store_faults(QUIET)

    return blow_one


async def store_away(world: World, node: SimNode, rand: Rand) -> None:
    world.bucket.is_away = True
    await asyncio.sleep(LASTS_S)
    world.bucket.is_away = False


async def full_bucket(world: World, node: SimNode, rand: Rand) -> None:
    world.bucket.capacity_bytes = world.bucket.used_bytes() + rand.below(8_000)
    await asyncio.sleep(LASTS_S)
    world.bucket.capacity_bytes = None


async def rot(world: World, node: SimNode, rand: Rand) -> None:
    for _ in range(4):
        bucket = world.bucket
        spots = []
        for key in [key for key in bucket.objects if is_settled(key, node) and rand.below(3) == 0]:
            content = bucket.objects[key][0]
            position = rand.below(max(1, len(content)))
            if content:
                bucket.rot(key, position)
                spots.append((key, position, bucket.objects[key]))
                bucket.rotten[key] = content
        await asyncio.sleep(LASTS_S / 4)
        bucket.rotten.clear()
        for key, position, damaged in spots:
            if bucket.objects.get(key) is damaged:  # else it was put again, or deleted
                bucket.rot(key, position)


def is_settled(key: str, node: SimNode) -> bool:
    """An object that nobody puts again: a repeat that finds other bytes than its own ends the process, as it
    should."""
    object_id = parse_object_key(node.cluster_id, key)
    stored = None if object_id is None or node.image is None else node.image.objects.get(object_id)
    return stored is not None and stored.state is not ObjectState.PREPARED


async def full_disk(world: World, node: SimNode, rand: Rand) -> None:
    room_bytes = node.disk.capacity_bytes
    node.disk.capacity_bytes = node.disk.used_bytes() + rand.below(600)
    await asyncio.sleep(LASTS_S / 2)
    if rand.below(
        2
    ):  # somebody else takes the room that the reserve gave, and somebody thinks that a kill will help
        node.disk.capacity_bytes = node.disk.used_bytes() + rand.below(60)
        node.kill()
    await asyncio.sleep(LASTS_S / 2)
    node.disk.capacity_bytes = room_bytes


async def slow_disk(world: World, node: SimNode, rand: Rand) -> None:
    usual_s, node.disk.latency_s = node.disk.latency_s, 0.04
    await asyncio.sleep(LASTS_S / 2)
    node.disk.latency_s = usual_s


async def lost_races(world: World, node: SimNode, rand: Rand) -> None:
    node.rival = node.rival or Rival(world.bucket, rand)
    node.set_store_faults(replace(node.store_faults, lost_race=LOST_RACES))
    await asyncio.sleep(LASTS_S)
    node.set_store_faults(replace(node.store_faults, lost_race=0))


async def stray_write(world: World, node: SimNode, rand: Rand) -> None:
    """One write of the ring; a kill soon after, so that what it did is met before the log has moved on."""
    on_write, on_start, strayed = node.disk.on_write, node.on_start, asyncio.Event()
    writes_before = rand.below(12)

    def watch(path: str, position: int, data: bytes) -> None:
        nonlocal writes_before
        on_write(path, position, data)
        if path != WAL_FILE or position < RING_START or node.rotten is not None or strayed.is_set():
            return
        if decode_block_header(memoryview(data), 0) is None and rand.below(8):
            return  # zeros ahead of the log are most of what is written
        writes_before -= 1
        if writes_before < 0:
            delta_bytes = _delta(position, len(data), len(node.disk.files[path].durable), rand)
            if delta_bytes:
                node.disk.at_write(node.disk.write_count + 1, Misdirect(delta_bytes))
                node.rotten = ASTRAY
                strayed.set()

    def judge() -> None:
        file = node.disk.files.get(WAL_FILE)
        if file is not None and file.is_astray and not is_harmless_or_told(file):
            world.hits["stray write that nobody could tell"] += 1
            file.set_right()
        on_start()

    node.disk.on_write, node.on_start = watch, judge
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LASTS_S):
            await strayed.wait()
            await asyncio.sleep(rand.below(120) / 1000)
            node.kill()


async def replaced(world: World, node: SimNode, rand: Rand) -> None:
    await node.ready()
    node.replace()
    assert node.replaced is not None
    life = node.replaced.life
    if rand.below(2):
        world.hits["replaced process frozen"] += 1
        world.loop.freeze(life)
        await asyncio.sleep(rand.below(600) / 1000)
        if not life.is_over:
            world.loop.thaw()
    await asyncio.sleep(LASTS_S)
    node.end_replaced()


async def cloned(world: World, node: SimNode, rand: Rand) -> None:
    await node.ready()
    node.begin_clone(rand)
    assert node.cloned is not None
    await node.cloned.live()


def _delta(position: int, length: int, size_bytes: int, rand: Rand) -> int:
    """A block or some to either side, or anywhere; 0: beyond the device."""
    blocks = (
        1,
        -1,
        1 + rand.below(8),
        -1 - rand.below(8),
        rand.below(size_bytes // BLOCK_BYTES) - position // BLOCK_BYTES,
    )
    target = position + blocks[rand.below(len(blocks))] * BLOCK_BYTES
    return target - position if 0 <= target <= size_bytes - length else 0


def is_harmless_or_told(file: SimFile) -> bool:
    """Whether the log can do without what a stray write took; or something sound says that it was durable.
    Else it looks like a write that never was, which may end a log."""
    assert file.meant is not None
    actual, meant = bytes(file.durable), file.meant
    device = choose_device_header(actual[:BLOCK_BYTES], actual[BLOCK_BYTES:RING_START])
    if device is None:
        return True
    geometry = Geometry.of(device.capacity_bytes)
    sound: list[BlockHeader] = []
    lost: list[BlockHeader] = []
    for block in blocks_from(meant, geometry, device.head):
        at = geometry.physical(block.position)
        is_sound = actual[at : at + block.length] == meant[at : at + block.length]
        (sound if is_sound else lost).append(block)
    certain = max([device.confirmed, *(block.confirmed for block in sound)])
    return not lost or lost[0].end <= certain


async def wal_rot(world: World, node: SimNode, rand: Rand) -> None:
    """From now on until it struck once: at a start, one byte of the log is wrong, or its block cannot be
    read."""
    before = node.on_start

    def corrupt() -> None:
        before()
        if node.salvage is not None and node.salvage.is_under_way:
            return  # one damage at a time
        if isinstance(node.settings.wal_settings, ObjectWalSettings):
            if node.rotten_object is None and corrupt_object(world, node, rand):
                node.on_start = before
        elif node.rotten is None and WAL_FILE in node.disk.files:
            position = _spot(node.disk.files[WAL_FILE].durable, rand)
            if position is not None:
                node.rotten = position, node.disk.files[WAL_FILE].durable[position]
                corrupt_byte = node.disk.flip if rand.below(3) else node.disk.lose_block
                corrupt_byte(WAL_FILE, position)
                world.trace.note(node.name, "rot", WAL_FILE, position)
                node.on_start = before

    node.on_start = corrupt
    await asyncio.sleep(LASTS_S)


def corrupt_object(world: World, node: SimNode, rand: Rand) -> bool:
    """A byte of an object of the log. Three times in four of one that holds records, or of none at this
    start; else of any, the root among them."""
    sizes = {key: len(content) for key, (content, _) in sorted(world.bucket.objects.items())}
    keys = [key for key in sizes if "/wal/" in key or key == root_key(node.node_id)]
    if rand.below(4):
        keys = [key for key in keys if sizes[key] > HEADER_BYTES + RECORD_HEADER_BYTES]
    if not keys:
        return False
    key = keys[rand.below(len(keys))]
    position = rand.below(HEADER_BYTES if rand.below(3) == 0 else sizes[key])
    world.bucket.rot(key, position)
    node.rotten_object = key, position, world.bucket.objects[key]
    world.trace.note(node.name, "rot", key, position)
    return True


def older_place(*, is_log: bool) -> Blow:
    async def blow_one(world: World, node: SimNode, rand: Rand) -> None:
        await node.ready()
        await find_strange(OlderPlace(node, is_log=is_log), node, rand)

    return blow_one


async def older_pair(world: World, node: SimNode, rand: Rand) -> None:
    await node.ready()
    await find_strange(OlderPair(node), node, rand)


def other_wal(*, is_other_kind: bool) -> Blow:
    async def blow_one(world: World, node: SimNode, rand: Rand) -> None:
        await node.ready()
        own, other = node.settings, with_the_other_kind(node, rand) if is_other_kind else None
        move = WalMove(node, other, is_copied_early=rand.below(2) == 0) if rand.below(3) else None
        if move is not None:
            await asyncio.sleep(rand.below(400) / 1000)
            await move.go()
            other = own if is_other_kind and move.is_done else other
        await find_strange(drawn_place(node, rand, other, move), node, rand, serves_ms=400)

    return blow_one


async def found_wal(world: World, node: SimNode, rand: Rand) -> None:
    await node.ready()
    older = OlderWal(node)
    await find_strange(older, node, rand, serves_ms=400)
    await kill_until(lambda: older.is_settled, node, rand)
    if older.current is None:
        return
    if rand.below(2):
        await asyncio.sleep(rand.below(600) / 1000)
        node.kill()
        await node.ready()
    await asyncio.sleep(rand.below(600) / 1000)
    node.strange = older.current
    await kill_until(lambda: node.strange is None or node.strange.is_settled, node, rand)


async def same_copy(world: World, node: SimNode, rand: Rand) -> None:
    """Copied again where the bucket knew too little yet."""
    for _ in range(KILLS_MAX):
        await asyncio.sleep((100 + rand.below(600)) / 1000)
        await node.ready()
        if world.bucket.rotten or world.bucket.is_away:
            continue
        copy = dict(world.bucket.objects)
        await asyncio.sleep(rand.below(600) / 1000)
        node.begin_loss(rand.split("first"), copy)
        await kill_until(lambda: node.lost_log is not None and node.lost_log.is_settled, node, rand, 2)
        if node.lost_log is not None and node.lost_log.is_settled:
            break
    else:
        return
    await asyncio.sleep(rand.below(1_500) / 1000)
    await node.ready()
    node.begin_loss(rand.split("second"), copy)
    await kill_until(lambda: node.lost_log is not None and node.lost_log.is_settled, node, rand)
    world.hits["restore: from the same copy again"] += node.lost_log is not None and node.lost_log.is_settled


async def kill_until(
    is_done: Callable[[], bool], node: SimNode, rand: Rand, kills_max: int = KILLS_MAX
) -> None:
    """The process is killed and serves again, until one of its starts has met what it was to meet."""
    for _ in range(kills_max):
        if is_done():
            return
        node.kill()
        await node.ready()
        await asyncio.sleep((50 + rand.below(400)) / 1000)


def strange_bucket(*kinds: str) -> Blow:
    async def blow_one(world: World, node: SimNode, rand: Rand) -> None:
        await node.ready()
        kind = kinds[rand.below(len(kinds))]
        await find_strange(StrangeBucket(node, kind, is_whole=rand.below(2) == 0), node, rand)

    return blow_one


async def find_strange(place: StrangePlace, node: SimNode, rand: Rand, serves_ms: int = 100) -> None:
    """What may be a copy was taken by now: the process is killed twice, and from then on the first start that
    can tell finds it."""
    for _ in range(2):
        await asyncio.sleep((100 + rand.below(400)) / 1000)
        if node.is_ready:
            node.kill()
        await node.ready()
    node.strange = place
    await asyncio.sleep(rand.below(serves_ms) / 1000)
    node.kill()
    await node.ready()


def _sequence(copy: bytes) -> int:
    header = decode_device_header(copy)
    return -1 if header is None else header.sequence


def _spot(data: bytearray, rand: Rand) -> int | None:
    """Where damage can be told from a torn write: in a copy of the header, the newest mostly, or in a block
    of which a later one says that it was durable."""
    if rand.below(2):
        copies = [bytes(data[at : at + BLOCK_BYTES]) for at in (0, BLOCK_BYTES)]
        newest = copies.index(max(copies, key=_sequence))
        chosen = newest if rand.below(4) else 1 - newest
        return chosen * BLOCK_BYTES + rand.below(100) if all(map(any, copies)) else None
    device = choose_device_header(bytes(data[:BLOCK_BYTES]), bytes(data[BLOCK_BYTES:RING_START]))
    if device is None:
        return None
    blocks = blocks_from(data, Geometry.of(device.capacity_bytes), device.head)
    certain = max([device.confirmed, *(block.confirmed for block in blocks)])
    sure = [block for block in blocks if block.end <= certain and block.position >= device.head]
    if not sure:
        return None
    block = sure[rand.below(len(sure))]
    return Geometry.of(device.capacity_bytes).physical(block.position) + rand.below(block.length)


async def salvaged(world: World, node: SimNode, rand: Rand) -> None:
    """From now on: the first start whose log has something that is certain to have been durable finds that
    damaged."""
    before = node.on_start

    def damage() -> None:
        before()
        if node.salvage is not None:
            node.salvage.damage()

    await node.ready()
    node.begin_salvage(rand)
    node.on_start = damage
    for _ in range(3):
        await asyncio.sleep((100 + rand.below(500)) / 1000)
        if node.is_ready and node.salvage is not None and node.salvage.state == SOUND:
            node.kill()
        await node.ready()


async def lost_log(world: World, node: SimNode, rand: Rand) -> None:
    """From now on: the first start at which the bucket knows enough."""
    await node.ready()
    node.begin_loss(rand, None)
    for _ in range(4):
        await asyncio.sleep((200 + rand.below(600)) / 1000)
        if node.is_ready and node.lost_log is not None and node.lost_log.is_due:
            node.kill()
        await node.ready()


async def slow_net(world: World, node: SimNode, rand: Rand) -> None:
    usual_us, world.net.delay_us = world.net.delay_us, (1_000, 60_000)
    await asyncio.sleep(LASTS_S / 2)
    world.net.delay_us = usual_us


def severed(*, is_one_way: bool) -> Blow:
    async def blow_one(world: World, node: SimNode, rand: Rand) -> None:
        for _ in range(3):
            peers = sorted({end.own[0] for end in world.net.ends.values()} - {node.host})
            if peers:
                peer = peers[rand.below(len(peers))]
                world.net.sever(node.host, peer)
                if not is_one_way:
                    world.net.sever(peer, node.host)
                await asyncio.sleep(rand.below(600) / 1000)
                world.net.heal()
            await asyncio.sleep(rand.below(100) / 1000)

    return blow_one


async def slow_reader(world: World, node: SimNode, rand: Rand) -> None:
    ends = [end for end in world.net.ends.values() if end.own[0] != node.host and rand.below(2)]
    for end in ends:
        world.hits["stopped reading"] += 1
        end.pause_reading()
    await asyncio.sleep(LASTS_S / 2)
    for end in ends:
        if not end.is_lost:
            end.resume_reading()


async def lost_answers(world: World, node: SimNode, rand: Rand) -> None:
    node.lost_per_mille = 150
    await asyncio.sleep(LASTS_S)
    node.lost_per_mille = 0


async def clock_ahead(world: World, node: SimNode, rand: Rand) -> None:
    world.clock.step(JUMPS_MS[rand.below(len(JUMPS_MS))])


async def clock_back(world: World, node: SimNode, rand: Rand) -> None:
    world.clock.step(-JUMPS_MS[rand.below(2)])


async def wrong_clock(world: World, node: SimNode, rand: Rand) -> None:
    """From now on until it struck once: the machine was off, and its clock is wrong at the next start."""
    before = node.on_start
    change_ms = WRONG_MS[rand.below(len(WRONG_MS))]
    is_set_right = rand.below(2) == 0
    starts = 0

    def go_wrong() -> None:
        nonlocal starts
        before()
        starts += 1
        if starts == 1:
            world.clock.step(change_ms)
            world.hits[f"a start with a clock {'ahead' if change_ms > 0 else 'behind'}"] += 1
        elif is_set_right and starts == 2:
            world.clock.step(-change_ms)

    node.on_start = go_wrong
    await asyncio.sleep(LASTS_S)
    if starts == 1 and is_set_right:  # while it runs
        world.clock.step(-change_ms)
        starts += 1


async def clock_drift(world: World, node: SimNode, rand: Rand) -> None:
    world.clock.drift(50_000 if rand.below(2) else -50_000)


WEATHERS: dict[str, Blow] = {
    "rough store": of_store(ROUGH),
    "slow store": of_store(SLOW),
    "strict store": of_store(STRICT),
    "store away": store_away,
    "full bucket": full_bucket,
    "rot": rot,
    "full disk": full_disk,
    "slow disk": slow_disk,
    "wal rot": wal_rot,
    "older log": older_place(is_log=True),
    "older wal": older_place(is_log=False),
    "older bucket": strange_bucket(OLDER),
    "wrong bucket": strange_bucket(EMPTIED, ANOTHER),
    "older pair": older_pair,
    "other wal": other_wal(is_other_kind=False),
    "other kind": other_wal(is_other_kind=True),
    "found wal": found_wal,
    "same copy": same_copy,
    "lost races": lost_races,
    "stray write": stray_write,
    "salvage": salvaged,
    "lost log": lost_log,
    "replaced": replaced,
    "cloned": cloned,
    "slow net": slow_net,
    "cut net": severed(is_one_way=False),
    "deaf net": severed(is_one_way=True),
    "slow reader": slow_reader,
    "lost answers": lost_answers,
    "wrong clock": wrong_clock,
    "clock ahead": clock_ahead,
    "clock back": clock_back,
    "clock drift": clock_drift,
}
