"""The doctor against stores that lack one property each, and what the broker does in their place."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.cli.doctor import examine
from millrace.runtime import bundle
from millrace.runtime.clock import Clock, SystemClock
from millrace.runtime.objectstore import ObjectStore, StoreDenied
from millrace.runtime.objectstore.address import StoreAddress, open_store, parse_address
from millrace.runtime.objectstore.probe import conditional_put_fault
from millrace.runtime.objectstore.s3 import S3ObjectStore
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.live.bad_s3 import BadS3
from tests.patience import PATIENCE_S, eventually, next_line


def examined(capsys: pytest.CaptureFixture[str], *faults: str) -> tuple[int, dict[str, Any]]:
    async def main() -> int:
        async with BadS3(*faults) as store:
            code = await examine(store.address, 2, True)
            assert store.objects == {}, "the doctor leaves nothing"
            assert store.uploads == {}
            return code

    code = asyncio.run(main())
    return code, json.loads(capsys.readouterr().out)


def test_a_store_with_everything_is_usable(capsys: pytest.CaptureFixture[str]) -> None:
    """Every property is found, times are measured, the policy names the bucket, and nothing is left
    behind."""
    code, report = examined(capsys)
    assert code == 0
    assert report["verdict"] == "usable"
    assert {finding["verdict"] for finding in report["findings"]} == {"yes"}
    assert len(report["findings"]) == 14
    assert [(one["verb"], one["size_bytes"]) for one in report["latencies"]] == [
        ("put", 4096),
        ("get", 4096),
        ("put", 4 << 20),
        ("get", 4 << 20),
    ]
    assert [one["stream"].partition(",")[0] for one in report["wal_costs"]] == [
        "idle",
        "a trickle",
        "busy",
        "very busy",
    ]
    assert [round(one["dollars_a_month"]) for one in report["wal_costs"]][:3] == [0, 146, 146]
    actions = [action for statement in report["policy"]["Statement"] for action in statement["Action"]]
    assert sorted(actions) == [
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
        "s3:GetObject",
        "s3:ListBucket",
        "s3:ListBucketMultipartUploads",
        "s3:PutObject",
    ]
    assert "secret&" not in json.dumps(report)


@pytest.mark.parametrize(
    ("fault", "name", "verdict", "instead"),
    [
        ("no-upload-list", "list uploads", "no", "let a rule of the bucket expire"),
        ("lists-no-uploads", "list uploads", "wrong", "let a rule of the bucket expire"),
        ("no-bulk-delete", "bulk delete", "no", "one by one"),
        ("ignores-if-none-match", "If-None-Match", "wrong", "object WAL"),
        ("refuses-if-none-match", "If-None-Match", "no", "object WAL"),
        (
            "ignores-conditional-completion",
            "If-None-Match for multipart",
            "wrong",
            "large objects are put without",
        ),
        (
            "refuses-conditional-completion",
            "If-None-Match for multipart",
            "wrong",
            "large objects are put without",
        ),
        ("races", "If-None-Match", "wrong", "object WAL"),
        ("ignores-if-match", "If-Match", "wrong", "in two steps"),
        ("refuses-checksums", "checksum header taken", "no", "left out"),
        ("ignores-checksums", "wrong checksum refused", "wrong", "first reader"),
        ("clock-behind", "clock", "wrong", "signatures"),
    ],
)
def test_what_can_be_done_another_way(
    capsys: pytest.CaptureFixture[str], fault: str, name: str, verdict: str, instead: str
) -> None:
    """A store that lacks it is usable; the report names the property and what the broker does in its
    place."""
    code, report = examined(capsys, fault)
    [found] = [finding for finding in report["findings"] if finding["name"] == name]
    assert (found["verdict"], found["fatal"]) == (verdict, False)
    assert instead in found["instead"]
    others = {finding["name"] for finding in report["findings"] if finding["verdict"] != "yes"}
    assert others == {name}
    assert (code, report["usable"]) == (0, True)
    assert report["verdict"] == f"usable; done another way: {name}"


@pytest.mark.parametrize(
    ("fault", "name", "verdict"),
    [
        ("no-multipart", "multipart", "no"),
        ("ignores-ranges", "ranged get", "wrong"),
        ("list-unordered", "list", "wrong"),
        ("list-late", "list", "wrong"),
        ("list-pages-overlap", "list pages", "wrong"),
        ("clock-hour-behind", "clock", "wrong"),
        ("deletes-one", "bulk delete", "wrong"),
        ("denies", "put and get", "no"),
        ("moved", "put and get", "no"),
    ],
)
def test_what_the_broker_cannot_do_without(
    capsys: pytest.CaptureFixture[str], fault: str, name: str, verdict: str
) -> None:
    """The report says so, and the exit code is 1."""

    async def main() -> int:
        async with BadS3(fault) as store:
            return await examine(store.address, 2, True)

    assert asyncio.run(main()) == 1
    report = json.loads(capsys.readouterr().out)
    [found] = [finding for finding in report["findings"] if finding["name"] == name]
    assert (found["verdict"], found["fatal"], report["usable"]) == (verdict, True, False)
    assert name in report["verdict"]


def seen_by(capsys: pytest.CaptureFixture[str], *faults: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Findings by name, and the verdict, of a store that cannot be used."""

    async def main() -> int:
        async with BadS3(*faults) as store:
            return await examine(store.address, 1, True)

    assert asyncio.run(main()) == 1
    report = json.loads(capsys.readouterr().out)
    return {finding["name"]: finding for finding in report["findings"]}, report["verdict"]


def test_bulk_delete_is_tried_as_the_broker_does_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A store that wants Content-MD5 is deleted from in bulk, by the broker and so by the doctor, which says
    how; one that deletes the first key of many and says nothing is found out."""
    code, report = examined(capsys, "wants-md5")
    [found] = [finding for finding in report["findings"] if finding["name"] == "bulk delete"]
    assert (code, report["verdict"], found["verdict"]) == (0, "usable", "yes")
    assert "under Content-MD5, after MissingContentMD5 to x-amz-checksum-crc32" in found["seen"]

    async def main() -> None:
        async with BadS3("wants-md5") as bad:
            store = await opened(bad)
            for _ in range(2):
                await store.put("a", [b"one"])
                await store.put("b", [b"two"])
                assert await store.delete(["a", "b"]) == []
                assert bad.objects == {}
            assert [request.split()[0] for request in bad.requests].count("POST") == 3
            assert not [request for request in bad.requests if request.startswith("DELETE")]
            await store.close()

    asyncio.run(main())
    findings, _ = seen_by(capsys, "deletes-one")
    assert "2 of 3 keys are still there" in findings["bulk delete"]["seen"]


def test_a_clock_that_is_wrong_is_told_before_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the store says nothing but that it is; with what to do about it, in the verdict too."""
    for faults in (("clock-hour-behind",), ("clock-hour-behind", "skewed")):
        findings, verdict = seen_by(capsys, *faults)
        assert next(iter(findings)) == "clock"
        assert findings["clock"]["seen"] in ("ours is 3600 s ahead", "ours is 3601 s ahead")
        assert "set this machine's clock" in findings["clock"]["advice"]
        assert "clock" in verdict
        assert "set this machine's clock" in verdict
    findings, verdict = seen_by(capsys, "skewed")
    assert findings["clock"]["verdict"] == "yes"
    assert "set the clock" in verdict
    findings, verdict = seen_by(capsys, "expired")
    assert "session token has expired" in verdict

    async def shown() -> None:
        async with BadS3("clock-hour-behind") as store:
            await examine(store.address, 1, False)

    asyncio.run(shown())
    assert "clock: the broker cannot do without it; set this machine's clock" in capsys.readouterr().out


@pytest.mark.parametrize(
    "address",
    [
        "s3://buck/prefix",
        "s3://b c?region=r",
        "s3://lake?endpoint=http://127.0.0.1:99999",
        "s3://lake?endpoint=ftp://127.0.0.1",
        "s3://lake?region=eu west",
        "file:///etc/passwd",
        "file:///etc/passwd/below",
    ],
)
def test_a_mistake_in_the_address_is_a_sentence(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, code 2."""
    assert asyncio.run(examine(address, 1, False)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.startswith("millrace: ")
    assert "key '" not in told.err


def test_a_folder_is_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was not there is not there afterwards, nor what was made above it, and the report says so; of
    one that was, nothing is changed."""
    assert asyncio.run(examine(f"file://{tmp_path}/no/such", 1, True)) == 0
    assert list(tmp_path.iterdir()) == []
    assert f"{tmp_path}/no/such was not there" in json.loads(capsys.readouterr().out)["note"]
    (tmp_path / "there" / "empty").mkdir(parents=True)
    (tmp_path / "there" / "object").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    assert asyncio.run(examine(f"file://{tmp_path}/there", 1, True)) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["note"], report["left"]) == ("", "")
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "there" / ".new").mkdir()
    asyncio.run(examine(f"file://{tmp_path}/there", 1, True))
    assert (tmp_path / "there" / ".new").is_dir(), "a broker's, perhaps"


def test_a_doctor_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    """Neither objects nor folders."""

    async def main() -> None:
        examining = asyncio.ensure_future(examine(f"file://{tmp_path}/no/such", 100_000, True))
        await eventually(lambda: bool(list((tmp_path / "no" / "such").glob("millrace-doctor-*"))))
        examining.cancel()
        await asyncio.wait([examining])

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_a_doctor_that_is_interrupted_as_it_begins_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders are made where the store is opened."""

    async def opening(address: StoreAddress, clock: Clock, yield_queue: YieldQueue) -> ObjectStore:
        Path(address.target, ".new").mkdir(parents=True)
        raise asyncio.CancelledError

    monkeypatch.setattr(bundle, "open_store", opening)  # real_runtime takes it from there
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(examine(f"file://{tmp_path}/no/such", 1, True))
    assert list(tmp_path.iterdir()) == []


def test_a_doctor_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    """As by `timeout` or a job's end: what it put would stay in the bucket, and cost."""
    words = [
        sys.executable,
        "-m",
        "millrace.broker",
        "doctor",
        "--rounds",
        "100000",
        f"file://{tmp_path}/no/such",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        next_line(process.stderr)  # it has begun
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_directory_and_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory is examined with the same verbs, in a table for people; a wrong address is code 2 and a
    sentence; a store that is not there is code 1."""
    assert asyncio.run(examine(f"file://{tmp_path}/objects", 2, False)) == 0
    shown = capsys.readouterr().out
    assert "verdict: usable" in shown
    assert "IAM" not in shown
    assert asyncio.run(examine("s3://lake?pathstyle=true", 2, False)) == 2
    assert "pathstyle: no such option" in capsys.readouterr().err
    nobody = "s3://lake?endpoint=http://127.0.0.1:9&region=r&accessKey=a&secretKey=b"
    assert asyncio.run(examine(nobody, 2, True)) == 1
    assert "put and get" in json.loads(capsys.readouterr().out)["verdict"]


async def opened(store: BadS3) -> S3ObjectStore:
    found = await open_store(parse_address(store.address), SystemClock())
    assert isinstance(found, S3ObjectStore)
    return found


def test_checksum_headers_are_left_out_where_they_are_refused() -> None:
    """The first put is refused and goes out again without; the next ones are sent once. The same for an
    upload in parts."""

    async def main() -> None:
        async with BadS3("refuses-checksums") as bad:
            store = await opened(bad)
            await store.put("a", [b"one"])
            await store.put("b", [b"two"])
            assert [request for request in bad.requests if request.startswith("PUT")] == ["PUT "] * 3
            assert bad.objects == {"a": b"one", "b": b"two"}
            upload = await store.start_multipart("c")
            await upload.put_part([b"three"])
            await upload.complete()
            assert bad.objects["c"] == b"three"
            await store.close()

    asyncio.run(main())


def test_a_refusal_that_is_no_lack_stays_one() -> None:
    """A denied put is denied, and does not make the store give up checksums."""

    async def main() -> None:
        async with BadS3("denies") as bad:
            store = await opened(bad)
            with pytest.raises(StoreDenied, match="AccessDenied"):
                await store.put("a", [b"one"])
            assert store.has_checksums
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("ignores-if-none-match", "is ignored"),
        ("refuses-if-none-match", "refuses conditional puts"),
        ("races", "at the same time"),
        ("no-bulk-delete", None),
    ],
)
def test_a_store_without_conditions_is_found_out(fault: str, words: str | None) -> None:
    """Before anything relies on it: ignored, refused, or not held when creators race."""

    async def main() -> None:
        async with BadS3(fault) as bad:
            store = await opened(bad)
            found = await conditional_put_fault(store, "test/")
            assert (words in found) if words and found else found is words
            await store.close()

    asyncio.run(main())
