"""Which WAL may meet which metadata log: every pair of ages and identities, and what an accepted loss
changes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest

from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.wal_binding import WalBinding, check_found_mark, judge_wal
from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.raft.log_view import LogHistory
from millrace.kraft.tables.wals import WalState
from millrace.protocol.stream_records import NodeWalRecord, StreamRecord
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark, WalIdentity

NODE = 1
OURS, OTHER = bytes(range(16)), bytes(range(16, 32))
HISTORY = LogHistory(0, 100, ((1, 0), (2, 60)))


@dataclass
class Case:
    """One start. `says` is what a refusal names; None: it goes on as `binding` says."""

    name: str
    found: WalIdentity | None
    registered: bytes | None = OURS
    open_streams: int = 1
    state: WalState = WalState.ACTIVE
    says: str | None = None
    binding: WalBinding = field(default_factory=WalBinding)
    accepted: WalBinding | None = None  # with wal.lost.accept


def wal(wal_id: bytes | None = OURS, epoch: int | None = 7, mark: MetadataMark = NO_MARK) -> WalIdentity:
    return WalIdentity(wal_id, epoch, mark)


def image(case: Case) -> MetadataImage:
    records: list[object] = [
        StreamRecord(number, node_id=NODE, state=1) for number in range(case.open_streams)
    ]
    if case.registered is not None:
        address = "0@file:///had"
        records.append(NodeWalRecord(NODE, case.registered, "block", address, 7, OURS, 4096, int(case.state)))
    return apply_records(EMPTY_IMAGE, records, 100, 2)[1]


LOST, LOST_OTHER = WalBinding(is_lost=True), WalBinding(is_lost=True, is_foreign=True)
LOST_OLDER = WalBinding(is_lost=True, is_foreign=True, is_older=True)
KNOWN = WalBinding(committed_end=4096)
CASES = [
    Case("the registered WAL", wal(), binding=KNOWN),
    Case("the registered WAL, taken by a start that was killed", wal(epoch=9), binding=KNOWN),
    Case("first start of all", None, registered=None, open_streams=0),
    Case(
        "a log that metadata does not name",
        wal(OTHER),
        registered=None,
        open_streams=0,
        binding=WalBinding(is_unlisted=True),
    ),
    Case("first start after an upgrade", wal(NO_WAL_ID), registered=None),
    Case(
        "a new WAL, streams open",
        None,
        says="is new, but 1 streams were open.*had the WAL 000102",
        accepted=LOST,
    ),
    Case(
        "a new WAL before any was registered",
        None,
        registered=None,
        says="is new, but 1 streams",
        accepted=LOST,
    ),
    Case("a new WAL, all streams closed", None, open_streams=0),
    Case("another WAL, streams open", wal(OTHER), says="not the one.*0@file:///had", accepted=LOST_OTHER),
    Case(
        "another cluster's WAL, which names later metadata",
        WalIdentity(OTHER, 9, MetadataMark(5000, 1), "theirs"),
        says="belongs to cluster theirs, and this is cluster ours",
    ),
    Case(
        "another node's WAL",
        WalIdentity(OTHER, 9, NO_MARK, "ours", NODE + 1),
        says=f"belongs to node {NODE + 1}, and this is node {NODE}.*that is empty, and start once with "
        "wal.lost.accept",
    ),
    Case("the registered WAL of this cluster", WalIdentity(OURS, 7, NO_MARK, "ours", NODE), binding=KNOWN),
    Case("another WAL, all streams closed", wal(OTHER), open_streams=0, binding=WalBinding(is_foreign=True)),
    Case(
        "one without an id, streams open", wal(NO_WAL_ID), says="no id yet.*not the one", accepted=LOST_OTHER
    ),
    Case(
        "an older copy by its epoch",
        wal(epoch=6),
        says="older copy: its last owner had epoch 6",
        accepted=LOST_OLDER,
    ),
    Case(
        "an older copy, all streams closed",
        wal(epoch=6),
        open_streams=0,
        says="older copy",
        accepted=LOST_OLDER,
    ),
    Case("an epoch that only opening tells", wal(epoch=None), binding=KNOWN),
    Case("an id that cannot be read", wal(None, None), binding=KNOWN),
    Case("metadata of that age", wal(mark=MetadataMark(100, 2)), binding=KNOWN),
    Case("metadata of that age, an earlier epoch", wal(mark=MetadataMark(60, 1)), binding=KNOWN),
    Case(
        "metadata that ends before",
        wal(mark=MetadataMark(101, 2)),
        says="older than the WAL.*millrace restore",
    ),
    Case("metadata that went another way", wal(mark=MetadataMark(61, 1)), says="older than the WAL"),
    Case("metadata of an unknown epoch", wal(mark=MetadataMark(90, 3)), says="older than the WAL"),
    Case(
        "older metadata beside another WAL", wal(OTHER, mark=MetadataMark(101, 2)), says="older than the WAL"
    ),
    Case(
        "metadata that was restored",
        wal(mark=MetadataMark(500, 9)),
        open_streams=0,
        state=WalState.RECOVERING,
        binding=KNOWN,
    ),
    Case(
        "an older copy beside metadata that was restored",
        wal(epoch=6),
        open_streams=0,
        state=WalState.RECOVERING,
        says="older copy: its last owner had epoch 6",
        accepted=LOST_OLDER,
    ),
    Case(
        "another WAL beside metadata that was restored",
        wal(OTHER),
        state=WalState.RECOVERING,
        says="not the one.*0@file:///had",
        accepted=LOST_OTHER,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_start_goes_on_or_is_refused(case: Case) -> None:
    """As the table says; with a loss accepted, only an old metadata log still refuses."""

    def judged(*, is_acceptable: bool) -> WalBinding:
        return judge_wal(case.found, "/wal", image(case), HISTORY, NODE, "ours", is_acceptable=is_acceptable)

    if case.says is None:
        assert judged(is_acceptable=False) == judged(is_acceptable=True) == case.binding
        return
    with pytest.raises(BindingRefused, match=case.says):
        judged(is_acceptable=False)
    if case.accepted is None:
        with pytest.raises(BindingRefused, match=case.says):
            judged(is_acceptable=True)
    else:
        assert judged(is_acceptable=True) == case.accepted


@pytest.mark.parametrize(
    ("state", "says"),
    [(WalState.ACTIVE, r"was still at work.*`millrace restore`"), (WalState.RECOVERING, "")],
)
def test_a_log_that_somebody_else_wrote_to_since_is_refused(state: WalState, says: str) -> None:
    """Once it is taken: by the metadata that it named then. Not where metadata was restored beside it."""
    known = image(Case("a shared log", wal(), state=state))
    check_found_mark(MetadataMark(100, 2), OURS, "/wal", known, HISTORY, NODE)
    for later in (MetadataMark(101, 2), MetadataMark(70, 1)):
        with pytest.raises(BindingRefused, match=says) if says else contextlib.nullcontext():
            check_found_mark(later, OURS, "/wal", known, HISTORY, NODE)


def test_history_below_its_start_is_not_judged() -> None:
    """A log that begins with a snapshot cannot tell what lay before."""
    history = LogHistory(50, 100, ((2, 60),))
    assert history.has(50, 1)
    assert not history.has(61, 1)
    assert history.has(100, 2)
    assert not history.has(101, 2)
    assert LogHistory(0, 0, ()).has(0, -1)
