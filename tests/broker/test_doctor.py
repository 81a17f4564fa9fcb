"""The doctor against stores that lack one property each, and what the broker does in their place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.cli.doctor import examine
from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import StoreDenied
from millrace.runtime.objectstore_probe import conditional_put_fault
from millrace.runtime.objectstore_s3 import S3ObjectStore
from millrace.runtime.storeaddress import open_store, parse_address
from tests.live.bad_s3 import BadS3


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
    """Every property is found, times are measured, the policy names the bucket, and nothing is left behind."""
    code, report = examined(capsys)
    assert code == 0
    assert report["verdict"] == "usable"
    assert {finding["verdict"] for finding in report["findings"]} == {"yes"}
    assert len(report["findings"]) == 13
    assert [(one["verb"], one["size_bytes"]) for one in report["latencies"]] == [
        ("put", 4096),
        ("get", 4096),
        ("put", 4 << 20),
        ("get", 4 << 20),
    ]
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
        ("races", "If-None-Match", "wrong", "object WAL"),
        ("ignores-if-match", "If-Match", "wrong", "nothing asks for it"),
        ("refuses-checksums", "checksum header taken", "no", "left out"),
        ("ignores-checksums", "wrong checksum refused", "wrong", "first reader"),
        ("clock-behind", "clock", "wrong", "clock"),
    ],
)
def test_what_can_be_done_another_way(
    capsys: pytest.CaptureFixture[str], fault: str, name: str, verdict: str, instead: str
) -> None:
    """A store that lacks it is usable; the report names the property and what the broker does in its place."""
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
        ("denies", "put and get", "no"),
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


def test_a_directory_and_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory is examined with the same verbs, in a table for people; a wrong address is code 2 and a sentence; a store
    that is not there is code 1."""
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
    """The first put is refused and goes out again without; the next ones are sent once. The same for an upload in parts."""

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
