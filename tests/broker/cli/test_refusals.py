"""What an operator is told by each error that can end a start or a running node: a sentence, never a class
name, a tuple or a trace."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import millrace
from millrace.broker.cli.refusals import sentence_of
from millrace.broker.cluster.client import AnswerLost, NobodyAnswers
from millrace.broker.cluster.mover import NotServed
from millrace.broker.config import BrokerSettings, load
from millrace.broker.errors import CommandRefused, SettingsInvalid
from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.claim_format import NOBODY, ClaimCorrupt, ClaimKind, OwnerClaim
from millrace.broker.identity.ownership import Replaced
from millrace.broker.partitions.meta_stream import MetaCorrupt
from millrace.broker.partitions.opening import StateCorrupt
from millrace.broker.quorum.log_recovery import LogDamaged, LogUnreachable
from millrace.broker.settings.source import gather
from millrace.kraft import errors as kraft
from millrace.kraft.bucket.layout import BackupCorrupt
from millrace.kraft.bucket.writer import BackupForked
from millrace.kraft.peers.authentication import AuthenticationRefused
from millrace.kraft.peers.connection import NotAuthenticated, NotSent, PeerLost
from millrace.protocol.errors import KafkaError, WireError
from millrace.runtime import disk, objectstore
from millrace.runtime.disk.opening import DirectRefused
from millrace.runtime.errors import Closed, Corrupt, Exhausted, Fenced, MillraceError, Unavailable, in_words
from millrace.runtime.escapes import CallbackFailed
from millrace.runtime.net import ConnectFailed, ListenFailed
from millrace.runtime.objectstore.address import parse_address
from millrace.runtime.objectstore.watched import WAL_STORE
from millrace.s3stream import errors as s3stream
from millrace.s3stream.ids import Writer
from millrace.s3stream.objects.placing import ObjectForeign
from millrace.wal import errors as wal

CLAIM = OwnerClaim(ClaimKind.CLAIMED, "c", 1, 1, bytes(range(16)), NOBODY, 3, 1, 0)
SAMPLES: tuple[tuple[BaseException, str], ...] = (
    (ListenFailed("127.0.0.1", 9092, "Address already in use"), "listeners"),
    (BindingRefused("this and that do not belong together: do so"), "do so"),
    (BackupForked("c/metadata/log/1"), "one copy alone"),
    (BackupCorrupt("c/metadata/log/1", "a wrong checksum"), "a wrong checksum"),
    (CommandRefused("/d/wal is in use by a running node: stop it, or look at a copy"), "stop it"),
    (disk.DiskLocked("/d/.lock", "77"), "process 77"),
    (disk.DiskFull("/d/log", "No space left on device"), "make room, or give another place"),
    (
        disk.DiskFull("/d/wal", "No space left on device", 900, 7),
        "(900 bytes wanted, 7 free): make room, or give a smaller log (s3.wal.capacity)",
    ),
    (disk.DiskTaken("/d/wal"), "let one process run with this node.id"),
    (disk.DiskFailed("/d/wal", "Input/output error"), "/d/wal: Input/output error"),
    (DirectRefused("/d/wal"), "wal.direct.io=prefer"),
    (wal.WalClaimsWantDirect("/d/wal"), "stopped in order there, it can be moved away for a new one"),
    (
        ClaimCorrupt("c/owners/1/00000000000000000007", "its checksum differs"),
        "c/owners/1/00000000000000000007",
    ),
    (Replaced(CLAIM, "c/owners/1/00000000000000000002", None), "let one process run"),
    (ObjectForeign("c/objects/1", Writer(1, 5), Writer(1, 6)), "let one of the two run"),
    (kraft.LogCorrupt("/d/log", 7, "checksum differs"), "restore"),
    (kraft.LogMismatch("/d/meta.properties", "node.id", 1, 2), "set it as it was"),
    (kraft.VotersChanged("/d/quorum-state", (1, 2, 3), (1,)), "controller.quorum.voters.change.accept=true"),
    (kraft.VotersDiffer(2, 7, (1, 2), (1, 2, 3)), "nodes 1, 2, and this node is told"),
    (kraft.VotersDiffer(2, 7, (1, 2), (1, 2, 3)), "give all of them the same list"),
    (kraft.SnapshotCorrupt("/d/1.checkpoint", "checksum differs"), "restore"),
    (kraft.UnknownRecord("type 599"), "start the version that wrote it"),
    (kraft.LogFull("/d/log"), "/d/log"),
    (wal.WalCorrupt(8192, "no sound block"), "wal.lost.accept=true"),
    (wal.WalForeign(65600, "a btrfs file system"), "clear the device"),
    (wal.WalHeaderLost(8192, "a block of a log"), "wal.lost.accept=true"),
    (wal.WalClaimLost(8192), "start again"),
    (wal.WalMismatch("fencing", "an identity of millrace.version 1", "a log without one"), "fencing=claim"),
    (wal.WalMismatch("reservation", "one that the device enforces", "not to be had"), "fencing=reservation"),
    (wal.WalMismatch("cluster", "ours", "theirs"), "s3.wal.path"),
    (wal.WalMismatch("node", 1, 2), "s3.wal.path"),
    (wal.WalMismatch("version", 1, 2), "later millrace"),
    (wal.WalMismatch("fence", "reservation", "conditional"), "stop in order"),
    (wal.WalMismatch("capacity", 4096, 1024), "room"),
    (wal.WalFenced(3, 4), "one process"),
    (wal.WalFenced(3, 4), "a broker that recovered its WAL"),
    (wal.WalOutdated(4096, 8192), "put the current WAL back"),
    (
        wal.WalStoreUnfit("the store of the WAL ignores conditions: add fence=reservation"),
        "fence=reservation",
    ),
    (s3stream.StreamFenced(-1, 3), "one process"),
    (s3stream.StreamFenced(-1, 3), "an unclean election"),
    (s3stream.StreamFenced(-1, 3), "unregistered"),
    (s3stream.OffsetGap(3, 10, 20), "wal.lost.accept=true"),
    (s3stream.ObjectCorrupt("entry checksum differs", 9), "wal.lost.accept=true"),
    (s3stream.ObjectCorrupt("index checksum differs", 9, "c/objects/1"), "object c/objects/1"),
    (objectstore.StoreDenied("k", "403 Forbidden"), "credentials"),
    (
        objectstore.BucketMissing("k", "NoSuchBucket", 404),
        "does not exist: k: NoSuchBucket: 404; make it, or give another",
    ),
    (
        objectstore.FolderDenied("k", "Permission denied: /d belongs to user 0"),
        "belongs to user 0; let that user read and write there (chown, or chmod where it is the owner)",
    ),
    (objectstore.StoreUnavailable("k", "503"), "does not answer"),
    (objectstore.StoreContradicts("k", "a put is told that it exists, a read that it does not"), "a proxy"),
    (objectstore.StoreFull("k", "disk quota"), "full"),
    (objectstore.ObjectMissing("k"), "lacks"),
    (objectstore.BytesChanged("k"), "start again"),
    (KafkaError(104, "not this one"), "INCONSISTENT_CLUSTER_ID"),
    (PermissionError(13, "Permission denied", "/d"), "Permission denied"),
    (CallbackFailed(ValueError("of no use")), "the next start recovers"),
)
# Roots without a form of their own, and what cannot reach the process's end.
NO_SAMPLE = {
    MillraceError, Unavailable, Exhausted, Fenced, Corrupt, Closed, SettingsInvalid,
    objectstore.PreconditionFailed,
    objectstore.StoreConflict,
    kraft.NotLeader, kraft.ProposalDropped, kraft.TooManyCommands, kraft.EpochMismatch,
    kraft.CommandLost, kraft.CommandNotTaken, wal.WalFull, wal.WalClosed,
    s3stream.StreamMissing, s3stream.OffsetTrimmed, s3stream.OffsetBeyondEnd, s3stream.UploadExpired,
    s3stream.CompactionRefused, s3stream.RangeOwed, s3stream.RangeLost,
    ConnectFailed, PeerLost, kraft.OffsetWithinBatch, MetaCorrupt, StateCorrupt,
    LogUnreachable, LogDamaged, AnswerLost, NobodyAnswers, NotServed,
    NotSent, NotAuthenticated, AuthenticationRefused, wal.WalHeldElsewhere,
}  # fmt: skip


@pytest.fixture(scope="module")
def settings() -> BrokerSettings:
    return load({}, data_dir="/d", machine_bytes=1 << 30).settings


@pytest.mark.parametrize(("error", "part"), SAMPLES, ids=lambda one: type(one).__name__)
def test_a_sentence_and_a_remedy(settings: BrokerSettings, error: BaseException, part: str) -> None:
    """It says what is wrong and what can be done, in one line."""
    sentence = sentence_of(error, settings)
    assert sentence is not None
    assert part in sentence
    assert "\n" not in sentence
    assert type(error).__name__ not in sentence
    is_of_rights = type(error) is objectstore.StoreDenied
    assert is_of_rights == ("credentials" in sentence)
    assert not re.search(r"\('|', |None|\bErrno\b", sentence), sentence


def test_a_damaged_log_of_objects_is_named_by_its_address(settings: BrokerSettings) -> None:
    """There is no device to mend; the command that says what is left takes the address, in which no key is
    shown."""
    of_objects = replace(settings, wal=parse_address("0@s3://lake?secretKey=hidden&capacity=1GiB"))
    for error in (wal.WalCorrupt(8192, "it is gone"), s3stream.OffsetGap(7, 20, 30)):
        sentence = sentence_of(error, of_objects)
        assert sentence is not None
        assert "`millrace wal verify 0@s3://lake?secretKey=***&capacity=1GiB`" in sentence
        assert "restore the object" in sentence
        assert "device" not in sentence


SAMPLE_OF = {
    "str": "some words",
    "Sequence[str]": ["it is wrong"],
    "BaseException": ValueError("x"),
    "OwnerClaim | None": None,
    "Writer | None": None,
    "tuple[int, ...]": (1, 2),
}
OF_A_STORE = tuple(
    kind("k", "reason")
    for kind in (objectstore.StoreDenied, objectstore.StoreUnavailable, objectstore.StoreFull)
)


@pytest.mark.parametrize(
    "error", [*OF_A_STORE, objectstore.ObjectMissing("k")], ids=lambda one: type(one).__name__
)
def test_the_logs_store_is_not_taken_for_the_data_bucket(
    settings: BrokerSettings, error: objectstore.SaidByStore
) -> None:
    """What the WAL's own store said names its address, and the setting that it comes from."""
    of_objects = replace(settings, wal=parse_address("0@s3://log-lake"))
    error.store = WAL_STORE
    sentence = sentence_of(error, of_objects)
    assert sentence is not None
    assert "the store of the WAL 0@s3://log-lake" in sentence
    assert "data bucket" not in sentence
    assert "s3.data.buckets" not in sentence
    assert "s3.wal.path" in sentence or not isinstance(error, objectstore.StoreDenied)


def test_every_error_has_words() -> None:
    """A line of the log that names one shows no tuple and no class's form, whatever it carries."""
    for kind in (*project_errors(), KafkaError):
        made = kind.__init__
        wanted = inspect.signature(made).parameters.values() if inspect.isfunction(made) else ()
        asked = [one for one in wanted if one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "self"]
        given = [
            CLAIM if kind is Replaced and one.name == "own" else SAMPLE_OF.get(one.annotation, 7)
            for one in asked
        ]
        named = {
            one.name: False for one in wanted if one.kind is one.KEYWORD_ONLY and one.default is one.empty
        }
        told = in_words(kind(*(given or ["what it was", 7]), **named))
        assert re.search("[a-z]{3}", told), (kind, told)
        assert not re.search(r"\('|^\(|', |\(7, |'\)", told), told
        assert "\n" not in told


def test_a_defect_has_none(settings: BrokerSettings) -> None:
    """Its trace is worth more than its text."""
    for error in (AssertionError("x"), KeyError("x"), WireError("x"), RuntimeError("x")):
        assert sentence_of(error, settings) is None


def project_errors() -> Iterator[type[MillraceError]]:
    for package in ("runtime", "wal", "s3stream", "kraft", "broker"):
        for module in pkgutil.walk_packages([f"{millrace.__path__[0]}/{package}"], f"millrace.{package}."):
            if module.name.rpartition(".")[2] == "errors":
                importlib.import_module(module.name)
    pending: list[type[MillraceError]] = [MillraceError]
    while pending:
        kind = pending.pop()
        yield kind
        pending += kind.__subclasses__()


def test_every_error_of_the_project_was_thought_of() -> None:
    """A new one gets a sample above, or its reason to have none."""
    seen = {type(error) for error, _ in SAMPLES} | NO_SAMPLE
    gaps = {kind for kind in project_errors() if kind.__module__.startswith("millrace.")} - seen
    assert not gaps


LISTENERS = {"broker": "PLAINTEXT://127.0.0.1:9", "controller": "CONTROLLER://127.0.0.1:8"}
LIST = "controller.quorum.voters"


@pytest.mark.parametrize(
    ("roles", "named", "is_one_of_several"),
    [
        ("broker,controller", {}, False),
        ("controller", {LIST: "1@127.0.0.1:8"}, False),
        ("broker,controller", {LIST: "1@127.0.0.1:8,2@b:1,3@c:1"}, True),
        ("broker", {LIST: "2@b:1,3@c:1"}, True),
        ("controller", {"controller.quorum.bootstrap.servers": "a:1,b:1"}, True),
    ],
)
def test_a_node_of_several_is_sent_to_the_others_for_its_metadata(
    roles: str, named: dict[str, str], is_one_of_several: bool
) -> None:
    """A copy that is put back is an older one, and so is what the bucket has: a voter would forget what it
    has promised the others, who have all of it. An only voter has nobody else to ask."""
    given = named and {
        "process.roles": roles,
        "listeners": ",".join(LISTENERS[role] for role in roles.split(",")),
        "controller.listener.names": "CONTROLLER",
        "s3.data.buckets": "0@file:///bucket",
    }
    common = {"node.id": "1", "cluster.id": "AAAAAAAAAAAAAAAAAAAAAQ"}
    overrides = [f"{key}={text}" for key, text in (common | given | named).items()]
    texts, _ = gather(overrides, {}, None, "server.properties")
    settings = load(
        texts, data_dir="/d", machine_bytes=1 << 30, is_formatted=lambda _: bool(named) and LIST not in named
    ).settings
    text = sentence_of(kraft.LogCorrupt("/d/log", 7, "checksum differs"), settings)
    assert text is not None
    assert ("while they have a leader" in text) is is_one_of_several
    assert ("put a copy" in text) is not is_one_of_several
