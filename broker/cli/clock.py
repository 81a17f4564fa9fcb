"""`millrace clock`: what a node knows of the time, and the operator's word that this machine's clock is
right.

Exit codes: 0 nothing speaks against the clock, or it was confirmed; 1 it is doubted; 2 it could not be looked
at, or the word was not taken. Not here: what is believed (wall_watch.py), who takes the word (known_time.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millrace.broker.cli import RunLoop
from millrace.broker.cli.inspecting import CANNOT_LOOK, add_node_options, settings_of
from millrace.protocol.dataclass import dataclass

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.runtime.bundle import Runtime

ABOUT = """\
Shows this machine's clock beside the newest time that the node in a data directory knows of, and beside the
clock of its bucket, where that has one. A node deletes nothing for its age beyond what it knows: after a long
time off, or when the clock is set ahead, that waits for a bucket whose clock agrees, or for --confirm.

  millrace clock --data-dir /var/lib/millrace
  millrace clock --data-dir /var/lib/millrace --confirm

--confirm says that this machine's clock is right now. A node that runs takes it within seconds, one that is
stopped at its next start. It is said once: a clock that goes wrong later is doubted again.
"""


@dataclass(frozen=True, slots=True)
class Times:
    """`newest_ms` is up to ten minutes old while a broker runs. None: not known."""

    wall_ms: int
    newest_ms: int | None
    store_ms: int | None

    @property
    def is_denied_by_store(self) -> bool:
        from millrace.broker.identity.wall_watch import JUMP_MAX_MS

        return self.store_ms is not None and abs(self.wall_ms - self.store_ms) > JUMP_MAX_MS


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    parser = argparse.ArgumentParser(
        "millrace clock",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_node_options(parser)
    parser.add_argument("--confirm", action="store_true", help="say that this machine's clock is right now")
    parser.add_argument(
        "--anyway", action="store_true", help="also where the bucket's clock says something else"
    )
    given = parser.parse_args(words)
    settings = settings_of(given, env)
    if settings is None:
        return CANNOT_LOOK
    from millrace.runtime.bundle import real_runtime

    return run_loop(look(real_runtime(), settings, given))


async def look(runtime: Runtime, settings: BrokerSettings, given: argparse.Namespace) -> int:
    from millrace.broker.cli.refusals import sentence_of
    from millrace.runtime.errors import MillraceError
    from millrace.runtime.objectstore.address import AddressError

    try:
        times = await _times(runtime, settings)
        if given.confirm and times.is_denied_by_store and not given.anyway:
            print("\n".join(lines(times, settings.clock_gap_max_ms)[1]), file=sys.stderr)
            print(
                "millrace: not confirmed: the bucket's clock says something else. Set this machine's clock "
                "right, "
                "or say --anyway where the bucket's is the one that is wrong",
                file=sys.stderr,
            )
            return CANNOT_LOOK
        if given.confirm:
            await _confirm(runtime, settings, times.wall_ms)
            return 0
    except (MillraceError, OSError, AddressError) as error:
        print(f"millrace: {sentence_of(error, settings) or repr(error)}", file=sys.stderr)
        return CANNOT_LOOK
    is_doubted, texts = lines(times, settings.clock_gap_max_ms)
    if given.json:
        found = {"wall_ms": times.wall_ms, "newest_ms": times.newest_ms, "store_ms": times.store_ms}
        print(json.dumps({**found, "doubted": is_doubted}))
    else:
        print("\n".join(texts))
    return int(is_doubted)


async def _times(runtime: Runtime, settings: BrokerSettings) -> Times:
    from millrace.broker.errors import CommandRefused
    from millrace.broker.identity.known_time import NEWEST
    from millrace.broker.identity.known_time_text import decode_time
    from millrace.kraft.log.meta_properties import read_meta_properties

    log_dir = settings.controller.log_dir
    if await read_meta_properties(runtime.disk, log_dir) is None:
        raise CommandRefused(
            f"{log_dir} holds no metadata log: name the node's directory with --data-dir, or its settings "
            "with --config"
        )
    data = await runtime.disk.read_file(f"{log_dir}/{NEWEST}")
    newest_ms = None if data is None else decode_time(data)
    return Times(runtime.clock.wall_ms(), newest_ms, await _store_ms(runtime, settings))


async def _store_ms(runtime: Runtime, settings: BrokerSettings) -> int | None:
    """None for a directory, and where the bucket does not answer, which is said."""
    from millrace.broker.identity.binding import MARKER_KEY
    from millrace.runtime.errors import MillraceError
    from millrace.runtime.objectstore import last_date_of

    if settings.data.scheme != "s3":
        return None
    store = await runtime.open_store(settings.data, runtime.clock)
    try:
        await store.head(MARKER_KEY)
    except MillraceError as error:
        print(f"millrace: {settings.data} does not answer: {error}", file=sys.stderr)
    finally:
        await store.close()
    date = last_date_of(store)  # a refusal has one, too
    return None if date is None else date.wall_ms


async def _confirm(runtime: Runtime, settings: BrokerSettings, wall_ms: int) -> None:
    from millrace.broker.identity.known_time import CONFIRMED
    from millrace.broker.identity.known_time_text import encode_time, shown

    await runtime.disk.write_file(f"{settings.controller.log_dir}/{CONFIRMED}", encode_time(wall_ms))
    print(
        f"confirmed that it is {shown(wall_ms)}: taken by the running node within seconds, else at its next "
        "start, "
        f"up to {settings.clock_gap_max_ms / 3_600_000:g} hours from now"
    )


def lines(times: Times, gap_max_ms: int) -> tuple[bool, list[str]]:
    """Whether something speaks against the clock, and what there is to see."""
    from millrace.broker.identity.known_time_text import shown
    from millrace.broker.identity.wall_watch import JUMP_MAX_MS

    def row(name: str, ms: int) -> str:
        hours = (ms - times.wall_ms) / 3_600_000
        apart = "" if abs(hours) < 0.05 else f", {abs(hours):.1f} hours {'later' if hours > 0 else 'earlier'}"
        return f"{name:<20} {shown(ms)}{apart}"

    texts = [f"{'this machine':<20} {shown(times.wall_ms)}"]
    if times.newest_ms is not None:
        texts.append(row("newest known time", times.newest_ms))
    if times.store_ms is not None:
        texts.append(row("the bucket's clock", times.store_ms))
    if times.store_ms is not None and not times.is_denied_by_store:
        return False, [*texts, "the bucket's clock agrees"]
    if times.is_denied_by_store:
        return True, [
            *texts,
            "DOUBTED: the bucket's clock says something else. Set this machine's clock right",
        ]
    if times.newest_ms is None:
        return False, [*texts, "nothing is known that speaks against it"]
    ahead_ms = times.wall_ms - times.newest_ms
    if ahead_ms > max(gap_max_ms, JUMP_MAX_MS):
        held = (
            "DOUBTED: nothing is deleted for the age of that time. If it is right: millrace clock --confirm"
        )
        return True, [*texts, held]
    if ahead_ms < -JUMP_MAX_MS:
        return True, [*texts, "DOUBTED: it was later before. If it is right: millrace clock --confirm"]
    return False, [*texts, "nothing speaks against it"]
