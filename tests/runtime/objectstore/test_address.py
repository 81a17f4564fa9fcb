"""Storage addresses: what they say, what is refused, and that no secret shows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore.address import AddressError, open_store, parse_address
from millrace.runtime.objectstore.local import LocalObjectStore
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.wal.block.kind import read_settings as read_block_settings
from millrace.wal.kind import WalWords
from millrace.wal.object.kind import read_settings as read_object_settings


@pytest.mark.parametrize(
    ("text", "scheme", "target", "options"),
    [
        ("0@file:///var/lib/millrace", "file", "/var/lib/millrace", {}),
        ("0@file://./data%20here", "file", "./data here", {}),
        ("0@mem://", "mem", "", {}),
        (" 0@S3://bucket?region=eu-west-1 ", "s3", "bucket", {"region": "eu-west-1"}),
        (
            "0@s3://b?endpoint=http://127.0.0.1:9000/x&secretKey=a+b/c%3D&pathStyle=true&empty=",
            "s3",
            "b",
            {"endpoint": "http://127.0.0.1:9000/x", "secretKey": "a+b/c=", "pathStyle": "true", "empty": ""},
        ),
        ("0@s3://buck/?region=r", "s3", "buck/", {"region": "r"}),
        (
            "0@s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/ap",
            "s3",
            "arn:aws:s3:eu-west-1:123456789012:accesspoint/ap",
            {},
        ),
        ("0@s3://b?endpoint=https://[::1]:9000", "s3", "b", {"endpoint": "https://[::1]:9000"}),
        ("0@file:///dev/sdb?capacity=2147483648", "file", "/dev/sdb", {"capacity": "2147483648"}),
    ],
)
def test_an_address_is_parsed(text: str, scheme: str, target: str, options: dict[str, str]) -> None:
    """Scheme, target and options, percent-decoded; a plus in a secret stays a plus."""
    address = parse_address(text)
    assert (address.bucket_id, address.scheme, address.target, address.options) == (
        0,
        scheme,
        target,
        options,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "id"),
        ("s3://bucket", "id"),
        ("x@s3://bucket", "id"),
        ("0@bucket", "scheme"),
        ("0@://bucket", "scheme"),
        ("0@s3://", "names no bucket"),
        ("0@file://", "names no path"),
        ("0@s3://one,1@s3://two", "not a list"),
        ("0@s3://b?region=a&region=b", "twice"),
        ("0@s3://buck/prefix", "say s3://buck"),
        ("0@s3://b c", "no bucket's name"),
        ("0@s3:///b", "no bucket's name"),
        ("0@s3://b?endpoint=http://127.0.0.1:99999", "where a server listens"),
        ("0@s3://b?endpoint=127.0.0.1:9000", "where a server listens"),
        ("0@s3://b?endpoint=http://a b&secretKey=hush", "where a server listens"),
    ],
)
def test_a_malformed_address_says_why(text: str, reason: str) -> None:
    """Each mistake is named."""
    with pytest.raises(AddressError, match=reason):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0@ftp://x", "none of s3, file, mem"),
        ("0@s3://b?accessKey=a", "together"),
        ("0@s3://b?authType=static", "together"),
        ("0@s3://b?pathStyle=yes", "neither true nor false"),
        ("0@s3://b?maxConnections=-1", "not a number"),
        ("0@s3://b?checksumAlgorithm=md5", "neither crc32c nor none"),
        ("0@s3://b?region=eu west", "cannot be used: "),
        ("0@s3://arn:aws:s3?region=r", "cannot be used: "),
    ],
)
def test_an_address_that_cannot_be_opened_says_why(text: str, reason: str) -> None:
    """What parses may still be wrong for its scheme."""
    with pytest.raises(AddressError, match=reason):
        asyncio.run(_open_and_close(text))


async def _open_and_close(text: str) -> object:
    store = await open_store(parse_address(text), SystemClock())
    await store.close()
    return store


def test_no_secret_shows() -> None:
    """Neither a repr nor an error quotes a secret key or a session token."""
    text = "0@s3://b?accessKey=AKIA&secretKey=hush&sessionToken=quiet&pathStyle=maybe"
    address = parse_address(text)
    shown = f"{address} {address!r}"
    with pytest.raises(AddressError) as caught:
        address.flag("pathStyle")
    shown += str(caught.value)
    assert "AKIA" in shown
    assert "hush" not in shown
    assert "quiet" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "0@s3://lake?accessKey=AKIA&secretAccessKey=hush&endpoint=nowhere",
        "0@s3://lake?accessKey=AKIA&AWS_SECRET_ACCESS_KEY=hush&endpoint=nowhere",
        "0@s3://lake?accessKey=AKIA&password=hush&endpoint=nowhere",
        "0@s3://AKIA:hush@lake?region=us-east-1",
        "0@s3://lake&accessKey=AKIA&secretKey=hush",
        "0@s3://lake;secretKey=hush",
        "0@s3://lake?accessKey=AKIA;secretKey=hush&endpoint=nowhere",
        "0@s3://lake?endpoint=http://AKIA:hush@host:1x",
        "0@s3://lake?endpoint=http://:hush@",
        "0@s3://lake?endpoint=http://AKIA:hu/sh/hush@host:9000",
        "0@s3://lake?endpoint=http://AKIA:hush@host:9000",
        "0@s3://lake?endpoint=AKIA:hush@host",
        "0@s3://lake?endpoint=http:/AKIA:hush@host",
        "0@s3://lake secretKey=hush",
        "0@s3://lake#secretKey=hush",
        "0@s3://lake/secretKey=hush",
        "0@s3://lake?secretKey=hush&secretKey=hush",
        "0@s3://lake?hush1&hush1",
    ],
)
def test_a_secret_in_a_wrong_place_is_not_shown(text: str) -> None:
    """What an operator mistypes lands in the journal with the refusal; the key is not in it."""
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert "hush" not in str(caught.value)
    assert any(word in str(caught.value) for word in ("lake", "endpoint", "given twice"))


@pytest.mark.parametrize(
    "text",
    [
        "0@s3://lake?accessKey=AKIA,secretKey=hush",
        "0@s3://lake?accessKey=AKIA secretKey=hush",
        "0@s3://lake?accessKey=AKIA%26secretKey=hush",
        "0@s3://lake?accessKey=AKIA:hush",
        "0@s3://lake?region=eu-west-1?secretKey=hush",
        "0@s3://lake?region=eu-west-1,secretKey=hush",
        "0@s3://lake?secretKey:hush",
        "0@s3://lake?pwd=hush&pass=hush&keys=hush",
        "0@s3://lake?maxConnections=hush&pathStyle=true,hush",
        "0@s3://lake?endpoint=http://host:9000/?secretKey=hush",
        "0@file://AKIA:hush@/x?capacity=hush",
        "0@file:///x?fence=conditional,secretKey=hush",
    ],
)
def test_an_address_that_is_taken_shows_no_more_than_what_is_known_to_be_plain(text: str) -> None:
    """A warning, a ready page or a log line may quote it, whatever stands where."""
    address = parse_address(text)
    told = [str(address), repr(address), *address.unknown_options()]
    for asked in (lambda: address.number("maxConnections", 1), lambda: address.flag("pathStyle")):
        try:
            asked()
        except AddressError as error:
            told.append(str(error))
    words = WalWords(address.options, "prefer", "refuse")
    for kind in (read_block_settings, read_object_settings):
        told += [*kind(words).problems(), *words.mistakes]
    assert not [one for one in told if "hush" in one]


def test_what_is_plain_is_shown() -> None:
    """Whoever looks for a mistake sees it."""
    text = "0@s3://lake?endpoint=http://127.0.0.1:9000&region=eu-west-1&capacity=2GiB&fence=reservation&pathStyle=true&regoin=x"
    assert str(parse_address(text)) == text.replace("regoin=x", "regoin=***")
    assert str(parse_address("0@s3://lake?region=eu west 1")) == "0@s3://lake?region=eu***"
    assert str(parse_address("0@file:///var/lib/objects")) == "0@file:///var/lib/objects"
    assert str(parse_address("0@s3://arn:aws:s3:eu-west-1:1:accesspoint/x")).endswith("accesspoint/x")


def test_a_scheme_names_an_implementation(tmp_path: Path) -> None:
    """The table opens the directory store and the memory store."""
    assert isinstance(asyncio.run(_open_and_close(f"0@file://{tmp_path}/objects")), LocalObjectStore)
    assert isinstance(asyncio.run(_open_and_close("0@mem://")), MemoryObjectStore)


def test_a_secret_by_a_misspelt_name_is_not_shown() -> None:
    """The refusal of a key without its secret is what such a name leads to."""
    address = parse_address("0@s3://b?accessKey=AKIA&secretkey=hush&SESSIONTOKEN=quiet")
    with pytest.raises(AddressError, match="given together") as caught:
        asyncio.run(_open_and_close(str(address).replace("***", "hush")))
    for told in (str(caught.value), str(address), repr(address)):
        assert "hush" not in told
        assert "quiet" not in told


@pytest.mark.parametrize("mode", ["rw", "640x", "40", "0o640", "1777", "444", "888"])
def test_a_mode_is_three_digits(mode: str) -> None:
    """Those of `chmod`, its owner's read and write among them."""
    with pytest.raises(AddressError, match="is no mode of files"):
        asyncio.run(open_store(parse_address(f"0@file:///nowhere?mode={mode}"), SystemClock()))


def test_unknown_options_are_named() -> None:
    """The caller can warn of an option that nobody reads, and knows of more that are read."""
    address = parse_address("0@s3://b?region=r&pathstyle=true&capacity=1")
    assert address.unknown_options() == ["pathstyle", "capacity"]
    assert address.unknown_options(["capacity"]) == ["pathstyle"]
    assert parse_address("0@file:///b?region=r").unknown_options() == ["region"]


def test_s3_is_imported_only_for_s3() -> None:
    """A node on a directory never loads the S3 client; an s3 address does, and opens without sending
    anything."""
    script = (
        "import asyncio, sys\n"
        "from millrace.runtime.clock import SystemClock\n"
        "from millrace.runtime.objectstore.address import open_store, parse_address\n"
        "async def main(text):\n"
        "    store = await open_store(parse_address(text), SystemClock())\n"
        "    await store.close()\n"
        "    return type(store).__name__, 'aiobotocore' in sys.modules\n"
        "print(asyncio.run(main('0@mem://')))\n"
        "print(asyncio.run(main('0@s3://b?endpoint=http://127.0.0.1:9&accessKey=a&secretKey=b')))\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["('MemoryObjectStore', False)", "('S3ObjectStore', True)"]


def test_what_an_address_hides_is_filled_in_from_an_own_one() -> None:
    """Keys that nobody here has are left to the environment; what is shown stays as it is."""
    theirs = parse_address("0@s3://b?region=r&accessKey=AKIATHEIRS&secretKey=x&sessionToken=t&capacity=64MiB")
    own = parse_address("0@s3://other?region=q&accessKey=AKIAOWN&secretKey=y")
    found = parse_address(str(theirs)).with_hidden_of(own)
    assert (found.target, found.options) == (
        "b",
        {"region": "r", "accessKey": "AKIAOWN", "secretKey": "y", "capacity": "64MiB"},
    )
    assert parse_address(str(theirs)).with_hidden_of(parse_address("0@file:///d")).options == {
        "region": "r",
        "capacity": "64MiB",
    }
