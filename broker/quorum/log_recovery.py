"""LogRecovery: recovers the write-ahead log of a broker that is gone, in its name.

    look at the log as metadata names it                    changes nothing; raises LogUnreachable
      ─► begin: metadata gives the one that is gone a new epoch, and refuses what it asks for itself
      ─► claim its series in the bucket                     it finds that it was replaced, and ends
      ─► open its log                                       this fences it: it acknowledges nothing more
      ─► upload what is not committed, empty the log, close its streams, register the log
      ─► release the claim, close the log

As the broker's own start does, with nothing served. Kept true: killed anywhere, the next one, or the broker
itself, goes on from there. Not here: who is asked to (kraft/commands/leaders.py), when (failovers.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from millrace.broker.config import BrokerSettings
from millrace.broker.controller_client import ControllerClient
from millrace.broker.identity.binding import MARKER_KEY
from millrace.broker.identity.claims import Claimant, claimant_of
from millrace.broker.identity.log_place import place_of_log
from millrace.broker.identity.ownership import Owner, Replaced
from millrace.broker.identity.unknown_streams import NAMED_MAX, range_text, unknown_ranges
from millrace.broker.identity.wal_binding import WalBinding, check_found_mark, judge_wal
from millrace.broker.stores import NodeStores, wal_place
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.node import ControllerNode
from millrace.kraft.tables.wals import NodeWal
from millrace.protocol.dataclass import dataclass
from millrace.runtime.bundle import Runtime
from millrace.runtime.disk.watched import DiskWatch, watched
from millrace.runtime.errors import MillraceError, Unavailable, in_words
from millrace.runtime.objectstore import StoreFull
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.objectstore.watched import WAL_STORE, StoreWatch
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap
from millrace.s3stream.recovery import BLOCK_BYTES_MAX, PUT_AT_ONCE, Recovered
from millrace.s3stream.storage import Storage
from millrace.wal.errors import WalClaimLost, WalCorrupt, WalHeldElsewhere
from millrace.wal.identity import NO_MARK, MetadataMark, WalIdentity
from millrace.wal.kind import WalPlace
from millrace.wal.log import WalOwner, WriteAheadLog
from millrace.wal.opening import identify_wal, open_wal

log = logging.getLogger(__name__)
# What one recovery may hold beside the log cache: a part of its size, and no more than blocks under way take.
CACHE_PART: Final = 4
CACHE_BYTES_MAX: Final = (PUT_AT_ONCE + 2) * BLOCK_BYTES_MAX
CLOSE_MS: Final = 5_000
REACH_S: Final = 10.0  # for log and bucket to be seen from here
STALLED_S: Final = 15.0  # that a store or a device may not answer, before another broker is asked
LOOK_S: Final = 1.0
# Another broker may have the answer that this one does not get.
CLAIM_RETRIES: Final = RetryPolicy(attempts_max=6, longest_wait_ms=2_000, attempt_timeout_ms=10_000)
T = TypeVar("T")


class CommittedInBucket(Protocol):
    """The metadata backup, as it is used here: `MetadataBackup` or `RemoteBackup`."""

    async def reach_committed(self) -> None:
        """Returns when the bucket has all that is committed now."""
        ...


class LogUnreachable(Unavailable):
    """The log cannot be recovered from here; the argument says why. `needs_word`: nor by trying again, before
    an operator has said what becomes of it."""

    def __init__(self, why: str, *, needs_word: bool = False) -> None:
        super().__init__(why)
        self.needs_word = needs_word


class LogDamaged(LogUnreachable):
    """The log cannot be recovered as it is: some of it is damaged, or missing. Nothing of it was changed."""


@dataclass(frozen=True, slots=True)
class Found:
    """A log that can be opened from here."""

    wal: NodeWal
    place: WalPlace
    binding: WalBinding


class LogRecovery:
    """One attempt at the log of `node_id`, of a number of its own: an earlier one that was broken off may
    have taken the log, which is taken in a later epoch alone. `client` speaks for this broker."""

    def __init__(
        self,
        node_id: int,
        node: ControllerNode,
        client: ControllerClient,
        stores: NodeStores,
        backup: CommittedInBucket,
        settings: BrokerSettings,
        runtime: Runtime,
        attempt: int = 0,
    ) -> None:
        self._node_id = node_id
        self._node = node
        self._client = client
        self._stores = stores
        self._backup = backup
        self._settings = settings
        self._runtime = runtime
        self._rand = runtime.rand.split(f"failover of {node_id}, attempt {attempt}")
        self._wal_store = StoreWatch(WAL_STORE)
        self.device = DiskWatch()

    def hung_reason(self) -> str:
        """Why this attempt may never end, "" while it may: a block file cannot be called off."""
        if self.device.waits_s < STALLED_S:
            return ""
        wal = self._image.wals.last_written(self._node_id)
        address = "the write-ahead log" if wal is None else wal.address
        return f"{address} gives no answer to this broker (for {self.device.waits_s:.0f} s)"

    @property
    def _image(self) -> MetadataImage:
        return self._node.publisher.image

    async def find(self) -> Found:
        """Raises LogUnreachable where the log that metadata names is not here, is another one or an older
        copy, or is in use; and where the bucket is not seen from here, or the one or the other does not
        answer within `REACH_S`."""
        wal = self._image.wals.last_written(self._node_id)
        if wal is None:
            raise LogUnreachable("metadata names no write-ahead log")
        try:
            async with asyncio.timeout(REACH_S):
                await self._see_bucket()
                place = self._place_of(wal)
                found = await identify_wal(place, self._node_id)
            if found is None:
                raise LogUnreachable(f"no write-ahead log is at {wal.address}, seen from here")
            binding = self._judged(place, found)
            if found.is_held_elsewhere:
                raise WalHeldElsewhere(wal.address)
        except TimeoutError:
            why = self._wal_store.reason or f"{wal.address} or the bucket gives no answer"
            raise LogUnreachable(f"{why} (within {REACH_S:.0f} s)") from None
        except WalCorrupt as error:  # its header: no setting helps a start of the broker there
            raise LogUnreachable(
                f"{wal.address} cannot be recovered as it is: {in_words(error)}; put a sound copy there, or "
                f"say `millrace cluster give-up {self._node_id} --accept-loss`, which gives up all that it "
                "holds"
            ) from error
        except WalHeldElsewhere as error:
            raise self._elsewhere(error) from error
        except (MillraceError, ValueError, OSError) as error:
            raise error if isinstance(error, LogUnreachable) else LogUnreachable(in_words(error)) from error
        if binding.is_foreign:
            raise LogUnreachable(f"the write-ahead log at {wal.address}, seen from here, is another one")
        return Found(wal, place, binding)

    def _elsewhere(self, error: WalHeldElsewhere) -> LogUnreachable:
        """Until somebody starts the broker, whose own start may take it from anywhere."""
        return LogUnreachable(
            f"{error}: broker {self._node_id} may live there and go on acknowledging. Start broker "
            f"{self._node_id} where its log is; with fencing=claim in its s3.wal.path, or on a device with "
            "reservations, others can recover it, and with fencing=lock where all machines see the lock"
        )

    async def _see_bucket(self) -> None:
        if await self._stores.looks.head(MARKER_KEY) is None:
            raise LogUnreachable(f"{self._settings.data} is no bucket of a cluster, seen from here")

    async def run(self, found: Found) -> None:
        """On return no stream of the broker is open. Raises Fenced where it is back, or another recovers its
        log; LogDamaged; Unavailable where a store stops to answer; what opening and recovering a log
        raise."""
        incarnation = self._rand.split("incarnation").uuid()
        client = await self._client.begin_failover(self._node_id, incarnation)
        claimant = await self._claimant(client, incarnation)
        claim = await claimant.claim(self._node_id)
        owner = Owner(
            self._stores.looks,
            [claim],
            self._node_id,
            self._rand.split("looks"),
            _say_replaced,
            self._runtime.clock,
            is_conditional=claimant.has_conditions,
        )
        looks = asyncio.get_running_loop().create_task(owner.run(), name="looks of a failover")
        try:
            await self._recover_sound(found, client, owner)
            await claimant.release_all()
        finally:
            looks.cancel()
            await asyncio.gather(looks, return_exceptions=True)
            owner.close()

    async def _recover_sound(self, found: Found, client: ControllerClient, owner: Owner) -> None:
        try:
            await self._recover(found, client, owner)
        except WalClaimLost as error:  # no record is damaged, and each opening writes a claim of its own
            raise LogUnreachable(
                f"{found.wal.address}: {in_words(error)}; the next attempt writes a claim over it"
            ) from error
        except WalHeldElsewhere as error:  # it was opened elsewhere since it was looked at
            raise self._elsewhere(error) from error
        except (WalCorrupt, OffsetGap, ObjectCorrupt) as error:
            if isinstance(error, ObjectCorrupt) and error.key:
                raise  # that is no part of the log
            raise LogDamaged(
                f"{found.wal.address} cannot be recovered as it is: {in_words(error)}; put a sound copy "
                f"there, or start broker {self._node_id} with a wal.corruption or with wal.lost.accept=true, "
                f"or say `millrace cluster give-up {self._node_id} --accept-loss`, which gives up all that "
                "it holds"
            ) from error

    async def _recover(self, found: Found, client: ControllerClient, owner: Owner) -> None:
        wal = await _unless_stalled(
            self._open(found, client), lambda: self._wal_store.reason, lambda wal: wal.close()
        )
        settings = self._settings.streams
        cache_bytes = min(settings.log_cache_bytes // CACHE_PART, CACHE_BYTES_MAX)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_failed(error: BaseException) -> None:
            if not failed.done():
                failed.set_exception(error)
                failed.exception()  # where nobody asks any more

        storage = Storage(
            wal,
            self._stores.engine,
            client,
            client,
            replace(settings, log_cache_bytes=cache_bytes),
            self._node.cluster_id,
            on_failed,
            self._backup.reach_committed,
            ownership=owner,
            gate=owner,
        )
        try:
            await _unless_stalled(
                storage.start(before_close=lambda recovered: self._check_unknown(found, recovered)),
                lambda: storage.upload_blocked_reason or self._wal_store.reason,
            )
            await client.register_wal(
                wal.wal_id, found.wal.kind, found.wal.address, wal.confirmed_end, is_loss_accepted=False
            )
        finally:
            await storage.close(CLOSE_MS)
        if failed.done():
            failed.result()

    async def _check_unknown(self, found: Found, recovered: Recovered) -> None:
        """Of a log that was written before metadata was restored, or beside a majority that is gone: what it
        holds that metadata does not know is not dropped without a word. What it knows is committed by now."""
        first = found.wal.unknown_from
        if first is None:
            return
        lost = unknown_ranges(recovered.unknown.values(), self._image, first)
        if lost:
            named = ", ".join(range_text(one, self._node_id) for one in lost[:NAMED_MAX])
            more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
            raise LogUnreachable(
                f"it holds records of {len(lost)} streams that were opened after what the metadata here "
                f"knows: {named}{more}; start broker {self._node_id} with wal.lost.accept=true, or say "
                f"`millrace cluster give-up {self._node_id} --accept-loss` where partitions wait for it, and "
                f"`millrace cluster unregister {self._node_id}`",
                needs_word=True,
            )

    async def _open(self, found: Found, client: ControllerClient) -> WriteAheadLog:
        """In the name of the one that is gone, whose last owner can write no more on return."""
        image, is_shared = self._image, found.wal.kind == "object"
        mark = NO_MARK if is_shared else MetadataMark(image.offset, image.epoch)
        owner = WalOwner(
            self._node.cluster_id,
            self._node_id,
            client.broker_epoch,
            found.wal.wal_id,
            found.binding.committed_end,
            mark,
            is_heir=True,
        )
        wal = await open_wal(found.place, owner)
        try:
            history = self._node.driver.raft.log.history
            check_found_mark(
                wal.found_mark, wal.wal_id, found.place.address.target, image, history, self._node_id
            )
        except BaseException:
            await wal.close()
            raise
        return wal

    def _place_of(self, wal: NodeWal) -> WalPlace:
        """Raises AddressError."""
        place = wal_place(self._settings, self._runtime, self._stores, self._wal_store)
        disk = watched(place.disk, self.device)
        return replace(place_of_log(place, wal, self._settings), rand=self._rand.split("wal"), disk=disk)

    def _judged(self, place: WalPlace, found: WalIdentity) -> WalBinding:
        return judge_wal(
            found,
            place.address.target,
            self._image,
            self._node.driver.raft.log.history,
            self._node_id,
            self._node.cluster_id,
            is_acceptable=False,
        )

    async def _claimant(self, client: ControllerClient, incarnation: bytes) -> Claimant:
        return await claimant_of(
            RetryingObjectStore(self._stores.plain, self._rand.split("claims"), CLAIM_RETRIES),
            str(self._settings.data),
            self._node.cluster_id,
            incarnation,
            self._runtime.clock,
            self._node.publisher,
            client,
            _say_full,
        )


async def _unless_stalled(
    work: Coroutine[Any, Any, T],
    reason: Callable[[], str],
    close: Callable[[T], Awaitable[None]] | None = None,
) -> T:
    """What the work gives; closed where nobody takes it, for this was cancelled in that moment. Raises
    LogUnreachable, the work cancelled, where there has been a reason for `STALLED_S`: a store does not answer
    here, and may answer another broker."""
    loop = asyncio.get_running_loop()
    task, well_s = loop.create_task(work, name="recovery of a log"), loop.time()
    try:
        while not (await asyncio.wait([task], timeout=LOOK_S))[0]:
            why = reason()
            if not why:
                well_s = loop.time()
            elif loop.time() - well_s > STALLED_S:
                raise LogUnreachable(why)
        return task.result()
    except BaseException:
        task.cancel()
        (given,) = await asyncio.gather(task, return_exceptions=True)
        if close is not None and not isinstance(given, BaseException):
            await close(given)
        raise


def _say_replaced(error: Replaced) -> None:
    log.info("failover: %s", error)


def _say_full(what: str, attempts: int, error: StoreFull) -> None:
    log.warning("failover: %s waits for room: %s", what, error)
