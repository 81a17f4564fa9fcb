"""Reads all that a cluster shows to a client, for the checkers: topics, every partition from start to end,
what groups committed."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.protocol.error_codes import ErrorCode
from tests.sim import asking
from tests.sim.checkers import Checker, Found, FoundLog
from tests.sim.client import SimClient
from tests.sim.history import History, Place

ALL_LOOKUPS = ("first", "middle", "last", "beyond")


async def look(client: SimClient, history: History, lookups: Sequence[str] = ALL_LOOKUPS) -> Found:
    """`lookups`: which times of each log are looked up."""
    found = Found(is_read=True)
    for name, (topic_id, partitions) in (await asking.topics_of(client)).items():
        found.topics[name] = topic_id
        for index in range(partitions):
            found.logs[topic_id, index] = await read_log(client, history, name, (topic_id, index), lookups)
    for group, topic, index in history.commits:
        place = found.topics[topic], index
        found.commits[group, topic, index] = await asking.committed_offset(client, group, place)
    return found


def times_of(times: list[int]) -> dict[str, int]:
    last = max(times)
    return {"first": min(times), "middle": times[len(times) // 2], "last": last, "beyond": last + 1}


async def read_log(
    client: SimClient, history: History, name: str, place: Place, lookups: Sequence[str] = ALL_LOOKUPS
) -> FoundLog:
    """All of one partition; from its beginning again when that was cut meanwhile."""
    while True:
        known = history.watermarks(place)
        start, end = await asking.list_offsets(client, name, place[1])
        history.on_watermarks(place, start, end, known)
        records: list[tuple[int, bytes, int]] = []
        offset, is_whole = start, True
        while offset < end and is_whole:
            part = await asking.fetch_patiently(client, place, offset)
            found = asking.timed_records_of(part, offset)
            records += found
            is_whole = bool(found)
            offset = found[-1][0] + 1 if found else offset
        if is_whole or part.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
            times = [time for _, _, time in records]
            log = FoundLog(start, end, [(offset, value) for offset, value, _ in records], times)
            for epoch in history.log(place).ends_of_epochs:
                log.ends_of_epochs[epoch] = await asking.end_of_epoch(client, name, place[1], epoch)
            if times and not history.log(place).is_ageing:
                for asked in (times_of(times)[one] for one in lookups):
                    log.lookups.append((asked, await asking.list_offset(client, name, place[1], asked)))
                if (await asking.list_offsets(client, name, place[1]))[1] != end:
                    continue  # a request whose client is long gone was carried out meanwhile
            return log


def judge(checkers: list[Checker], history: History, found: Found) -> None:
    """Findings go into the history, and so does what was read: it was shown."""
    for checker in checkers:
        for line in checker.check(history, found):
            history.take(line)
    for place, log in found.logs.items():
        for offset, value in log.records:
            history.on_shown(place, offset, value)
