"""Fences a block WAL by claims, where neither a lock nor a device keeps a replaced owner out.

    who opens        write the claim ─► wait ─► read it: still mine ─► read the header, scan, own
    who owns         write a block ─► durable ─► read the claim: still mine ─► acknowledge the block

What is asked of the storage, from all machines that reach it, with direct I/O:

  A1  the first sector of a block is written whole or not at all;
  A2  a read that begins after a write was answered as durable gives that write's bytes, or later ones, on
      whichever machine either was asked for;
  A3  a write that was answered does not happen once more.

A volume that is attached to several machines gives that, and a file system over one that takes direct I/O
through to it. The invariant: *what an owner acknowledges, whoever opens the log next recovers.* The owner
read the claim after its block was durable, and found its own: by A2 the other's claim was not answered before
that read began. So the block was durable before the claim was answered, and by A2 the scan, which begins
after that, reads it. Space that a header frees is written over only after a look behind that header's write,
so the scan, which begins at the head of a header that it reads behind its claim, finds whole what lies there.
Nothing in this asks for a clock.

What an old owner had under way when the claim was written, or begins before it looks, is never acknowledged.
Where it lands before the scan it may be recovered, as any unconfirmed record may. Where it lands later it
lies at or behind the new owner's start and is void by its epoch; but it may lie *over* a block of the new
owner, and what that one acknowledged is then gone from the log. Three things bound that. A write begins only
within `FRESH_S` of a look that was good, so a process that stood still looks before it writes. Who opens a
log that was not closed waits `SETTLE_S`, in which what had been begun is to land. And its reset begins the
log behind all that may still come (log.py), so that it lands over nothing until the ring comes round. Left is
a process that stops between its look at the time and its system call, or a machine that hands writes to the
storage later than `SETTLE_S - FRESH_S`, and a lap of the ring. A reservation has no such rest.

The claim that was written last stands, whatever its epoch: of two that open at once both wait and look, and
the later one goes on; one that finds a higher epoch before it writes leaves the place alone. Who fails
between claim and scan has taken the log from its owner and owns nothing: the next one claims anew.

A look that fails, or finds no sound claim, tells nothing: nothing is acknowledged, the look is repeated, and
after `UNKNOWN_S` the log has failed. Whoever opens it next writes a sound claim over it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millrace.protocol.dataclass import dataclass
from millrace.runtime.disk import BlockFile, DiskFailed
from millrace.runtime.disk.aligned import Arena
from millrace.runtime.errors import MillraceError, Unavailable
from millrace.wal.block.claim import CLAIM_BYTES, Claim, decode_claim
from millrace.wal.block.layout import BLOCK_BYTES, CLAIM_PLACE
from millrace.wal.errors import WalClaimLost, WalFenced

log = logging.getLogger(__name__)
FRESH_S: Final = 0.25
SETTLE_S: Final = 1.0
UNKNOWN_S: Final = 5.0
AGAIN_S, AGAIN_MAX_S = 0.01, 0.5  # between looks that tell nothing, doubled with each
LOOK_S: Final = 2.0  # between looks of an owner that writes nothing
assert FRESH_S < SETTLE_S


@dataclass(slots=True, eq=False)
class _Write:
    position: int
    buffer: memoryview
    future: asyncio.Future[None]


class ClaimFence:
    """One opening's. `write_at` is as a block file's, but for its end: durable, and still ours."""

    def __init__(self, file: BlockFile, claim: Claim) -> None:
        self._file = file
        self._claim = claim
        self._encoded = claim.encode()
        self._own = self._encoded[:CLAIM_BYTES]
        self._loop = asyncio.get_running_loop()
        self._seen_s = float("-inf")  # when the last look began that found our claim
        self._spare: list[memoryview] = []  # memory of looks; as many as were ever under way
        self._held: list[_Write] = []  # not begun: the last good look is too long ago
        self._unlooked: list[asyncio.Future[None]] = []  # durable, and the look behind them told nothing
        self._looking: asyncio.Task[None] | None = None
        self._is_unknown = False  # a look told nothing, and none has since
        self._failure: MillraceError | None = None

    async def take(self) -> None:
        """On return our claim is durable; the caller looks once the log has settled. Raises WalFenced, the
        place untouched, where one of our epoch or a later one stands there; the disk's errors. Whatever else
        lies there is written over: what no opening wrote says nothing of who may acknowledge."""
        try:
            found = decode_claim(await self._file.read_at(CLAIM_PLACE, BLOCK_BYTES))
        except DiskFailed as error:
            found = None
            log.warning("the claim of the WAL cannot be read, and is written anew: %s", error)
        if found is not None and found.epoch >= self._claim.epoch:
            raise WalFenced(self._claim.epoch, found.epoch)
        view = Arena(BLOCK_BYTES).view
        view[:] = self._encoded
        await self._file.write_at(CLAIM_PLACE, view)

    async def settle(self) -> None:
        """What the owner before had begun has landed on return, but for what no bound holds for."""
        await asyncio.sleep(SETTLE_S)

    async def look(self) -> None:
        """Raises WalFenced where another's claim stands; Unavailable or WalClaimLost where nobody can tell
        for `UNKNOWN_S`."""
        deadline_s, again_s = self._loop.time() + UNKNOWN_S, AGAIN_S
        while True:
            self._check()
            began_s = self._loop.time()
            failure: MillraceError | None
            try:
                failure = self._judge(await self._file.read_at(CLAIM_PLACE, BLOCK_BYTES), began_s)
            except Unavailable as error:  # the disk's failure; or there was no thread to read it on
                failure = error
            if failure is None:
                return
            if isinstance(failure, WalFenced) or self._loop.time() > deadline_s:
                self._fail(failure)
                raise failure
            if not self._is_unknown:
                self._is_unknown = True
                log.warning("the WAL acknowledges nothing until its claim can be read: %s", failure)
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, AGAIN_MAX_S)

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        """Ends when the bytes are durable and a look that began later has found our claim. Fails with the
        write's error, WalFenced, or as `look`; no write ends well after one has failed."""
        write = _Write(position, buffer, self._loop.create_future())
        if self._failure is not None:
            write.future.set_exception(self._failure)
        elif self._loop.time() - self._seen_s <= FRESH_S and not self._held:
            self._begin(write)
        else:
            self._held.append(write)
            self._look_again()
        return write.future

    def _begin(self, write: _Write) -> None:
        memory = self._spare.pop() if self._spare else Arena(BLOCK_BYTES).view
        began_s = self._loop.time()
        try:
            under_way = self._file.write_then_read(write.position, write.buffer, CLAIM_PLACE, memory)
        except MillraceError as error:
            write.future.set_exception(error)
            return
        under_way.add_done_callback(lambda done: self._on_written(done, write.future, memory, began_s))

    def _on_written(
        self,
        done: asyncio.Future[DiskFailed | None],
        future: asyncio.Future[None],
        memory: memoryview,
        began_s: float,
    ) -> None:
        error = done.exception()
        failure = self._failure
        if error is None and failure is None:
            failure = done.result() or self._judge(memory, began_s)
        self._spare.append(memory)
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        elif failure is None:
            future.set_result(None)
        elif self._failure is not None:
            future.set_exception(self._failure)
        elif isinstance(failure, WalFenced):
            self._unlooked.append(future)
            self._fail(failure)
        else:
            self._unlooked.append(future)
            self._look_again()

    def _judge(self, block: bytes | memoryview, began_s: float) -> WalFenced | WalClaimLost | None:
        """None: our claim stood there after `began_s`."""
        if block[:CLAIM_BYTES] == self._own:
            self._seen_s = max(self._seen_s, began_s)
            self._is_unknown = False
            return None
        found = decode_claim(block)
        if found is not None:
            return WalFenced(self._claim.epoch, found.epoch)
        return WalClaimLost(CLAIM_PLACE)

    def _look_again(self) -> None:
        if self._looking is None:
            self._looking = self._loop.create_task(self._look_for_held(), name="wal-claim")
            self._looking.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _look_for_held(self) -> None:
        """Looks until all that waits for a look has had one that began later."""
        try:
            while self._held or self._unlooked:
                unlooked, self._unlooked = self._unlooked, []
                try:
                    await self.look()
                except MillraceError as error:
                    self._unlooked = unlooked + self._unlooked
                    self._fail(error)
                    return
                for future in unlooked:
                    if not future.done():
                        future.set_result(None)
                held, self._held = self._held, []
                for write in held:
                    self._begin(write)
        finally:
            self._looking = None

    def _fail(self, failure: MillraceError) -> None:
        """For good: what waits, and all that comes, fails with it."""
        if self._failure is None:
            self._failure = failure
        futures = [*self._unlooked, *(write.future for write in self._held)]
        self._unlooked, self._held = [], []
        for future in futures:
            if not future.done():
                future.set_exception(self._failure)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def watch(self, on_lost: Callable[[BaseException], None]) -> None:
        """Looks now and then, so that an owner that writes nothing learns that it was replaced. Until it is
        cancelled, or the log is lost."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except MillraceError as error:
                on_lost(error)
                return
