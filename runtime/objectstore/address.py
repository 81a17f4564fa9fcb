"""Storage addresses, and the table from their schemes to implementations.

    0@s3://BUCKET?endpoint=http://127.0.0.1:9000&region=us-east-1&pathStyle=true&accessKey=...&secretKey=...
    0@file:///DIR?mode=640          0@mem://

The number is the bucket's id (only 0 for now). A scheme names an implementation: a third one is one line of
OPENERS. The WAL's addresses have the same shape and are parsed here too, opened in wal. Values are
percent-decoded; `+` stands for itself, since secret keys contain it. Secrets never show in a repr or an error
(address_words.py). Not here: wrappers (retry, meter), which the caller puts around what it opens.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from millrace.runtime.clock import Clock
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address_words import (
    HIDDEN,
    shown_name,
    shown_server,
    shown_target,
    shown_value,
)
from millrace.runtime.scheduling.yield_queue import YieldQueue

_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
SECRETS = ("secretKey", "sessionToken")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,15}")
S3_OPTIONS = (
    "endpoint",
    "region",
    "pathStyle",
    "authType",
    "accessKey",
    "secretKey",
    "sessionToken",
    "checksumAlgorithm",
    "maxConnections",
    "connectTimeoutMs",
    "apiCallAttemptTimeoutMs",
)

FILE_OPTIONS = ("mode",)


class AddressError(ValueError):
    """An address that cannot be used. `reason` is for the operator and quotes no secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class StoreAddress:
    """`target` is the bucket (s3) or the path (file)."""

    bucket_id: int
    scheme: str
    target: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        options = (
            f"{shown_name(name, S3_OPTIONS)}={shown_value(name, value)}"
            for name, value in self.options.items()
        )
        shown = "&".join(options)
        return f"{self.bucket_id}@{self.scheme}://{self.shown_target}{'?' if shown else ''}{shown}"

    __repr__ = __str__

    @property
    def shown_target(self) -> str:
        return shown_target(self.scheme, self.target)

    def text(self, name: str) -> str | None:
        return self.options.get(name) or None

    def number(self, name: str, default: int) -> int:
        """The option's value, or `default`. Raises AddressError for what is no number."""
        value = self.options.get(name, "")
        if value and not (value.isascii() and value.isdecimal()):
            raise AddressError(f"{name}={shown_value(name, value)} is not a number, in {self}")
        return int(value) if value else default

    def flag(self, name: str) -> bool | None:
        """None when the address does not say. Raises AddressError for what is neither true nor false."""
        value = self.options.get(name, "").lower()
        if value not in ("", "true", "false"):
            raise AddressError(f"{name}={shown_value(name, value)} is neither true nor false, in {self}")
        return None if not value else value == "true"

    def with_hidden_of(self, own: StoreAddress) -> StoreAddress:
        """Of an address that was read from how another is shown: what is hidden there is as `own` has it, or
        left out, so that what the environment gives is taken."""
        options = {
            name: own.options.get(name) if HIDDEN in value else value for name, value in self.options.items()
        }
        return replace(self, options={name: value for name, value in options.items() if value is not None})

    def unknown_options(self, more: Collection[str] = ()) -> list[str]:
        """As they are shown: those that neither the store of this scheme reads nor whoever asks, who reads
        `more`."""
        known = self.store_options
        return [
            shown_name(name, S3_OPTIONS) for name in self.options if name not in known and name not in more
        ]

    @property
    def store_options(self) -> Sequence[str]:
        return S3_OPTIONS if self.scheme == "s3" else FILE_OPTIONS if self.scheme == "file" else ()


def parse_address(text: str) -> StoreAddress:
    """Raises AddressError. Whether the scheme is one that can be opened is `open_store`'s question."""
    bucket_id, at, url = text.strip().partition("@")
    if not at or not (bucket_id.isascii() and bucket_id.isdecimal()):
        raise AddressError("an address begins with its bucket's id, as in 0@s3://BUCKET")
    scheme, colon, rest = url.partition("://")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise AddressError("an address names its scheme, as in 0@file:///DIR")
    target, _, query = rest.partition("?")
    if "," in target:
        raise AddressError("one bucket is supported, not a list")
    options: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in options:
            raise AddressError(f"{shown_name(name, S3_OPTIONS)} is given twice")
        options[unquote(name)] = unquote(value)
    address = StoreAddress(int(bucket_id), scheme.lower(), unquote(target), options)
    if address.scheme in ("s3", "file") and not address.target:
        raise AddressError(f"{address} names no {'bucket' if address.scheme == 's3' else 'path'}")
    if address.scheme == "s3":
        _check_bucket(address)
        _check_endpoint(address)
    return address


def _check_bucket(address: StoreAddress) -> None:
    """A name, or the ARN of an access point, which only the client can judge."""
    if address.target.startswith("arn:"):
        return
    bucket, _, prefix = address.target.rstrip("/").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise AddressError(
            f"{address.shown_target!r} is no bucket's name, which is made of letters, digits, dots, hyphens "
            f"and underscores, in {address}"
        )
    if prefix:
        raise AddressError(
            f"what follows the bucket would be a prefix within it, which is not supported, in {address}: a "
            "cluster has a bucket to itself, "
            f"say s3://{bucket}"
        )


def _check_endpoint(address: StoreAddress) -> None:
    endpoint = address.text("endpoint")
    if endpoint is None:
        return
    try:
        parts = urlsplit(endpoint)
        is_sound = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and "@" not in endpoint
        )
    except ValueError:  # a port that is none
        is_sound = False
    if not is_sound or not endpoint.isprintable() or " " in endpoint:
        raise AddressError(
            f"endpoint={shown_server(endpoint)} is not where a server listens, as in http://127.0.0.1:9000, "
            f"in {address}: keys go into accessKey "
            "and secretKey"
        )


async def open_store(
    address: StoreAddress, clock: Clock, yield_queue: YieldQueue | None = None
) -> ObjectStore:
    """The store an address names, bare; what comes from it in large yields in `yield_queue`. Raises
    AddressError for an unknown scheme."""
    opener = OPENERS.get(address.scheme)
    if opener is None:
        raise AddressError(f"{address}: the scheme is none of {', '.join(OPENERS)}")
    return await opener(address, clock, yield_queue or YieldQueue())


async def _open_s3(address: StoreAddress, clock: Clock, yield_queue: YieldQueue) -> ObjectStore:
    # Imported here: aiobotocore takes half a second and 30 MiB, which nobody else should pay.
    from botocore.exceptions import BotoCoreError

    from millrace.runtime.objectstore.s3 import S3ObjectStore, S3Settings

    has_key, has_secret = address.text("accessKey") is not None, address.text("secretKey") is not None
    if has_key != has_secret or (address.text("authType") == "static" and not has_key):
        raise AddressError(f"accessKey and secretKey are given together, in {address}")
    algorithm = (address.text("checksumAlgorithm") or "crc32c").lower()
    if algorithm not in ("crc32c", "none"):
        shown = shown_value("checksumAlgorithm", algorithm)
        raise AddressError(f"checksumAlgorithm={shown} is neither crc32c nor none, in {address}")
    settings = S3Settings(
        bucket=address.target.rstrip("/"),
        endpoint=address.text("endpoint"),
        region=address.text("region"),
        path_style=address.flag("pathStyle"),
        access_key=address.text("accessKey"),
        secret_key=address.text("secretKey"),
        session_token=address.text("sessionToken"),
        has_checksums=algorithm == "crc32c",
        connections_max=address.number("maxConnections", 50),
        connect_timeout_ms=address.number("connectTimeoutMs", 5_000),
        read_timeout_ms=address.number("apiCallAttemptTimeoutMs", 30_000),
    )
    try:
        return await S3ObjectStore.open(settings, yield_queue=yield_queue)
    except (
        BotoCoreError,
        ValueError,
    ) as error:  # what the client does not take: a region, a profile, an endpoint
        raise AddressError(f"{address} cannot be used: {' '.join(str(error).split())}") from error


async def _open_file(address: StoreAddress, clock: Clock, yield_queue: YieldQueue) -> ObjectStore:
    from millrace.runtime.objectstore.local import LocalObjectStore

    return await LocalObjectStore.open(address.target, mode=_mode_of(address), writes=yield_queue.writes)


def _mode_of(address: StoreAddress) -> int | None:
    text = address.text("mode")
    if text is None:
        return None
    if re.fullmatch("0?[67][0-7][0-7]", text) is None:
        raise AddressError(
            f"mode={shown_value('mode', text)} is no mode of files that their owner reads and writes, as in "
            f"mode=640, in {address}"
        )
    return int(text, 8) & 0o666


async def _open_memory(address: StoreAddress, clock: Clock, yield_queue: YieldQueue) -> ObjectStore:
    from millrace.runtime.objectstore.memory import MemoryObjectStore

    return MemoryObjectStore(clock)


OPENERS: dict[str, Callable[[StoreAddress, Clock, YieldQueue], Awaitable[ObjectStore]]] = {
    "s3": _open_s3,
    "file": _open_file,
    "mem": _open_memory,
}
