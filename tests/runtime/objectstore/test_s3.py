"""The S3 store keeps the contract against moto's server, and bears what servers do: lost answers, refusals,
missing calls."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import md5, sha256
from itertools import count
from pathlib import Path
from typing import Any

import moto.backends
import pytest
from aiobotocore.session import AioSession
from crc32c import crc32c
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from moto.server import ThreadedMotoServer

from millrace.runtime.objectstore import (
    BucketMissing,
    BytesChanged,
    MultipartUpload,
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    StoreConflict,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
)
from millrace.runtime.objectstore.body import body_of
from millrace.runtime.objectstore.retry import RetryingMultipart, RetryingObjectStore, RetryPolicy
from millrace.runtime.objectstore.s3 import S3ObjectStore, S3Settings, bucket_url, new_client
from millrace.runtime.objectstore.s3_errors import s3_refusal
from millrace.runtime.objectstore.s3_http import CHUNK_BYTES, chunks
from millrace.runtime.rand import Rand
from millrace.testing.ports import free_port
from tests.runtime.objectstore.contract import ObjectStoreContract, keys_of, uploads_of

KEYS: dict[str, Any] = {"access_key": "test", "secret_key": "secret+/with=signs"}
bucket_numbers = count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@cache
def shared_session() -> AioSession:
    """Loads the client's model once for all."""
    return AioSession()


def moto_backend() -> Any:
    """What moto's server, in this process, keeps; a thousand requests to it would take five seconds."""
    return moto.backends.get_backend("s3")["123456789012"]["aws"]


class TestS3ObjectStore(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, endpoint: str) -> None:
        self.endpoint = endpoint

    afters = ("c/b/1", "c/b/100")  # each is a request of some milliseconds
    upload_gone = StoreUnavailable  # moto stumbles over it, with a 500

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        self.bucket = f"bucket{next(bucket_numbers)}"
        moto_backend().create_bucket(self.bucket, "us-east-1")
        settings = S3Settings(bucket=self.bucket, endpoint=self.endpoint, **KEYS)
        store = await S3ObjectStore.open(settings, shared_session())
        yield store
        await store.close()

    async def fill(self, store: ObjectStore, keys: Sequence[str]) -> None:
        for key in keys:
            moto_backend().put_object(self.bucket, key, b"x")


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = bytes | None  # None: the connection is cut without an answer
CUT: Answer = None


class Changing(bytes):
    """An answer before which something happens."""

    def __new__(cls, content: bytes, happens: Callable[[], object]) -> Changing:
        made = super().__new__(cls, content)
        made.happens = happens
        return made

    happens: Callable[[], object]


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} X",
        f"Content-Length: {len(body)}",
        *(f"{n.replace('_', '-')}: {v}" for n, v in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def refusal(status: int, code: str) -> bytes:
    return answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())


class ScriptedServer:
    """Answers requests with what it was given, in order, and keeps them. The one fault moto cannot show is an
    answer lost."""

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers
        self.requests: list[Request] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(Request(method, path, headers, body))
                reply = self.answers.pop(0)
                if isinstance(reply, Changing):
                    reply.happens()
                if reply is not None:
                    writer.write(reply)
                if reply is None or b"Connection: close" in reply:
                    return
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def scripted(
    answers: list[Answer], test: Callable[[S3ObjectStore], Awaitable[None]], **settings: Any
) -> list[Request]:
    """Runs `test` on a store before a scripted server; gives the requests that arrived."""

    async def main() -> list[Request]:
        script = ScriptedServer(answers)
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        chosen = S3Settings(bucket="b", endpoint=endpoint, path_style=True, **(KEYS | settings))
        # A session keeps the credentials it found, so one that must look for them is not shared.
        store = await S3ObjectStore.open(chosen, shared_session() if chosen.access_key else None)
        try:
            await test(store)
        finally:
            await store.close()
            server.close()
        assert not script.answers, "not every answer was asked for"
        return script.requests

    return asyncio.run(main())


@pytest.mark.parametrize("size_bytes", [5, CHUNK_BYTES + 5, 5 << 20])
def test_a_put_is_one_request_with_our_checksum(size_bytes: int) -> None:
    """Small or large, the body goes out once, unsigned, without 100-continue, under the CRC32C of all its
    parts."""
    content = b"0123456789abcdef" * (size_bytes // 16 + 1)
    parts = [content[:3], memoryview(content)[3:size_bytes]]

    async def test(store: S3ObjectStore) -> None:
        await store.put("c/a b", parts)

    [request] = scripted([answer(200, ETag='"x"')], test)
    assert (request.method, request.path) == ("PUT", "/b/c/a%20b")
    assert request.body == content[:size_bytes]
    crc = crc32c(content[:size_bytes]).to_bytes(4, "big")
    assert request.headers["x-amz-checksum-crc32c"] == base64.b64encode(crc).decode()
    assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "expect" not in request.headers
    assert "transfer-encoding" not in request.headers


@pytest.mark.parametrize("size_bytes", [0, 5, CHUNK_BYTES + 5])
def test_a_body_that_nothing_else_guards_is_signed(size_bytes: int) -> None:
    """Without a checksum and without TLS the signature covers the body's SHA-256, small or large."""
    content = b"0123456789abcdef" * (size_bytes // 16 + 1)

    async def test(store: S3ObjectStore) -> None:
        await store.put("a", [content[:size_bytes]])

    [request] = scripted([answer(200, ETag='"x"')], test, has_checksums=False)
    assert request.body == content[:size_bytes]
    assert request.headers["x-amz-content-sha256"] == sha256(content[:size_bytes]).hexdigest()
    assert "x-amz-checksum-crc32c" not in request.headers


@pytest.mark.parametrize(
    ("status", "code"), [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed")]
)
def test_a_bucket_of_another_region_is_named(status: int, code: str) -> None:
    """The store says where the bucket is, and the operator is told what to write into the address."""
    elsewhere = answer(
        status, f"<Error><Code>{code}</Code></Error>".encode(), x_amz_bucket_region="eu-west-3"
    )

    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(
            StoreDenied, match=r"in the region eu-west-3, not us-east-1: say region=eu-west-3"
        ):
            await store.get("a")

    scripted([elsewhere], test)


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for a store outside go to the proxy, whole; for one that NO_PROXY names they do not."""

    async def main() -> list[Request]:
        script = ScriptedServer([answer(200, b"x")])
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        outside = S3Settings(bucket="b", endpoint="http://store.example", path_style=True, **KEYS)
        store = await S3ObjectStore.open(outside, shared_session())
        assert await store.get("a") == b"x"
        await store.close()
        here = S3Settings(bucket="b", endpoint="http://127.0.0.1:9", path_style=True, **KEYS)
        store = await S3ObjectStore.open(here, shared_session())
        with pytest.raises(StoreUnavailable):
            await store.get("a")
        await store.close()
        server.close()
        return script.requests

    [request] = asyncio.run(main())
    assert request.path == "http://store.example/b/a"
    assert request.headers["host"] == "store.example"


@pytest.mark.parametrize("bucket", ["lake", "lake.of.dots"])
@pytest.mark.parametrize("style", [None, True, False])
@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("us-east-1", None),
        ("eu-central-1", None),
        ("cn-north-1", None),
        ("eu-central-1", "http://127.0.0.1:9000"),
        ("eu-central-1", "https://store.example/below"),
    ],
)
def test_bodies_go_where_the_client_library_sends_its_own(
    bucket: str, style: bool | None, region: str, endpoint: str | None
) -> None:
    """The bucket's address is the library's, in its region's own form and in each style: asked of a request
    that it was about to send."""
    settings = S3Settings(bucket, endpoint, region, style, "a", "b")

    async def main() -> tuple[str, list[str]]:
        sent: list[str] = []

        def stop(request: Any, **_: Any) -> None:
            sent.append(request.url)
            raise InterruptedError

        async with new_client(shared_session(), settings) as client:
            address = await bucket_url(client, bucket)
            client.meta.events.register_first("before-send.s3", stop)
            with pytest.raises(InterruptedError):
                await client.get_object(Bucket=bucket, Key="k")
        return address, sent

    address, sent = asyncio.run(main())
    assert [f"{address}/k"] == sent
    assert region in address or endpoint or region == "us-east-1"


def self_signed(folder: Path) -> tuple[str, str]:
    """Paths of a certificate for 127.0.0.1 and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_tls_is_verified_by_the_bundle_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AWS_CA_BUNDLE both clients trust the server, and bodies go out unsigned; without it nobody
    does."""
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def main(answers: list[Answer]) -> list[Request]:
        script = ScriptedServer(answers)
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=context)
        endpoint = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = S3Settings(bucket="b", endpoint=endpoint, path_style=True, has_checksums=False, **KEYS)
        store = await S3ObjectStore.open(settings)
        try:
            await store.put("a", [b"x"])
            assert await keys_of(store) == []
        finally:
            await store.close()
            server.close()
        return script.requests

    with pytest.raises(StoreUnavailable, match="certificate"):
        asyncio.run(main([]))
    monkeypatch.setenv("AWS_CA_BUNDLE", certificate)
    listed = answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
    put, _ = asyncio.run(main([answer(200, ETag='"x"'), listed]))
    assert put.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"


def test_checksums_that_were_taken_once_are_not_given_up() -> None:
    """A later refusal with the same code has another reason: it is told, and nothing is sent again
    without."""

    async def test(store: S3ObjectStore) -> None:
        await store.put("a", [b"x"])
        with pytest.raises(StoreDenied, match="InvalidArgument"):
            await store.put("b", [b"x"])
        assert store.has_checksums

    assert len(scripted([answer(200, ETag='"x"'), refusal(400, "InvalidArgument")], test)) == 2


@pytest.mark.parametrize("verb", ["put", "put_if_absent", "part"])
@pytest.mark.parametrize("size_bytes", [5000, 5 << 20])
def test_a_repeat_goes_out_under_the_first_sum(verb: str, size_bytes: int) -> None:
    """A body that changed behind its sum is sent under what it was summed as, and the store refuses it; the
    wrapper above asks no more then."""
    buffer = bytearray(b"A" * size_bytes)
    said = base64.b64encode(crc32c(buffer).to_bytes(4, "big")).decode()

    async def test(bare: S3ObjectStore) -> None:
        store = RetryingObjectStore(bare, Rand(b"s3"), RetryPolicy(attempts_max=3, first_wait_ms=1))
        upload = await bare.start_multipart("k") if verb == "part" else None
        body = body_of([buffer])
        await body.crc()
        buffer[:4] = b"EVIL"
        retrying = RetryingMultipart(upload, store, "k") if upload is not None else None
        call = retrying.put_part(body) if retrying is not None else getattr(store, verb)("k", body)
        with pytest.raises(BytesChanged):
            await call

    started = (
        [
            answer(
                200, b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
            )
        ]
        if verb == "part"
        else []
    )
    *_, request = requests = scripted([*started, refusal(400, "BadDigest")], test)
    assert len(requests) == len(started) + 1
    assert request.headers["x-amz-checksum-crc32c"] == said


def test_a_put_without_its_checksum_is_the_same_put() -> None:
    """The store knows no checksums; the buffer changed before the put is sent without one: it is not sent."""
    buffer = bytearray(b"what was said")

    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(BytesChanged):
            await store.put("k", [buffer])
        assert store.has_checksums

    refused = Changing(refusal(501, "NotImplemented"), lambda: buffer.__setitem__(0, 0))
    assert len(scripted([refused], test)) == 1


def test_requests_beyond_the_pool_wait_for_a_connection() -> None:
    """However many are asked for at once, no more connections are open than the settings allow."""

    async def main() -> None:
        open_now = most = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            try:
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    await asyncio.sleep(0.01)
                    writer.write(answer(200, b"x"))
            except (asyncio.IncompleteReadError, ConnectionError):
                open_now -= 1
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = S3Settings(bucket="b", endpoint=endpoint, path_style=True, connections_max=3, **KEYS)
        store = await S3ObjectStore.open(settings, shared_session())
        assert await asyncio.gather(*(store.get(f"{number}") for number in range(20))) == [b"x"] * 20
        assert most == 3
        await store.close()
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "reply",
    [refusal(503, "SlowDown"), refusal(500, "InternalError"), refusal(409, "ConditionalRequestConflict")],
)
def test_a_refusal_for_now_is_not_repeated_here(reply: bytes) -> None:
    """One attempt, one request: repeating is the retry wrapper's business."""

    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(StoreUnavailable):
            await store.put("c/a", [b"x"])

    assert len(scripted([reply], test)) == 1


def test_a_lost_answer_is_unavailable_and_the_repeat_knows_its_own() -> None:
    """The connection breaks after the body arrived; the repeat is refused with 412, reads what is there, and
    finds its bytes."""
    content = b"x" * (CHUNK_BYTES + 1)

    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(StoreUnavailable):
            await store.put_if_absent("c/lease", [content])
        await store.put_if_absent("c/lease", [content])
        with pytest.raises(PreconditionFailed):
            await store.put_if_absent("c/lease", [content])

    lost = refusal(412, "PreconditionFailed")
    requests = scripted([CUT, lost, answer(206, content), lost, answer(206, content[1:] + b"y")], test)
    assert [request.method for request in requests] == ["PUT", "PUT", "GET", "PUT", "GET"]
    assert {request.headers.get("if-none-match") for request in requests if request.method == "PUT"} == {"*"}


def test_an_answer_cut_off_is_unavailable() -> None:
    """A body shorter than its announced length is never given as the object."""

    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(StoreUnavailable):
            await store.get("c/a")

    scripted([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nonly this"], test)


def test_silence_is_unavailable() -> None:
    """A server that never answers costs the read timeout, not for ever."""

    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(StoreUnavailable):
            await store.get("c/a")

    assert len(scripted([b""], test, read_timeout_ms=100)) == 1


def test_no_server_is_unavailable() -> None:
    """A refused connection is Unavailable for every verb."""

    async def main() -> None:
        store = await S3ObjectStore.open(
            S3Settings(bucket="b", endpoint="http://127.0.0.1:9", **KEYS), shared_session()
        )
        for call in (
            store.put("a", [b"x"]),
            store.get("a"),
            store.head("a"),
            keys_of(store),
            store.delete(["a"]),
        ):
            with pytest.raises(StoreUnavailable):
                await call
        await store.close()

    asyncio.run(main())


PAGE = b"<html><body>We are back in a minute</body></html>"


async def put_a_part(store: S3ObjectStore) -> None:
    upload = await store.start_multipart("k")
    await upload.put_part([b"x"])


async def complete(store: S3ObjectStore) -> None:
    upload = await store.start_multipart("k")
    await upload.put_part([b"x"])
    await upload.complete()


MADE = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
TAKEN = answer(200, ETag='"e"')


@pytest.mark.parametrize(
    ("call", "before"),
    [
        (lambda store: store.put("k", [b"x"]), []),
        (lambda store: store.put_if_absent("k", [b"x"]), []),
        (keys_of, []),
        (lambda store: uploads_of(store, ""), []),
        (lambda store: store.start_multipart("k"), []),
        (put_a_part, [answer(200, MADE)]),
        (complete, [answer(200, MADE), TAKEN]),
    ],
    ids=["put", "put_if_absent", "list", "list_uploads", "start_multipart", "put_part", "complete"],
)
def test_a_success_that_no_store_would_tell_is_no_answer(
    call: Callable[[S3ObjectStore], Awaitable[object]], before: list[bytes]
) -> None:
    """A proxy's page in place of the store: nothing was stored, nothing is known, and it is asked again."""

    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(StoreUnavailable, match="no S3 store's answer to"):
            await call(store)

    scripted([*before, answer(200, PAGE)], test)


def test_a_head_without_a_date_is_no_answer() -> None:
    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(StoreUnavailable, match="no S3 store's answer to HEAD"):
            await store.head("k")

    scripted([answer(200)], test)


def test_a_page_deletes_nothing() -> None:
    """In answer to the deletion of one key: it is given back."""

    async def test(store: S3ObjectStore) -> None:
        assert await store.delete(["c/1", "c/2"]) == ["c/1"]

    scripted([answer(200, PAGE), answer(200, PAGE), answer(204)], test)


def test_delete_gives_back_what_was_refused() -> None:
    """Of a bulk delete the refused keys come back, but for those that were not there."""
    errors = "".join(
        f"<Error><Key>{key}</Key><Code>{code}</Code></Error>"
        for key, code in (("c/1", "InternalError"), ("c/2", "NoSuchKey"))
    )

    async def test(store: S3ObjectStore) -> None:
        assert await store.delete(["c/1", "c/2", "c/3"]) == ["c/1"]

    [request] = scripted([answer(200, f"<DeleteResult>{errors}</DeleteResult>".encode())], test)
    assert request.body.count(b"<Key>") == 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>Please log in</body></html>",
        b'<?xml version="1.0"?><ListBucketResult></ListBucketResult>',
        b"<DeleteResult><Error><Code>InternalError</Code></Error></DeleteResult>",
        b"<DeleteResult><Error><Key></Key><Code>InternalError</Code></Error></DeleteResult>",
        b"<DeleteResult><Error><Key>other</Key><Code>InternalError</Code></Error></DeleteResult>",
    ],
    ids=[
        "empty",
        "page",
        "another result",
        "an error without a key",
        "an empty key",
        "a key that was not asked for",
    ],
)
@pytest.mark.parametrize("status", [200, 202])
def test_delete_believes_no_answer_that_says_nothing_of_keys(body: bytes, status: int) -> None:
    """Its keys are deleted one by one; the next ones are asked for together again."""

    async def test(store: S3ObjectStore) -> None:
        assert await store.delete(["c/1", "c/2"]) == ["c/2"]
        assert await store.delete(["c/3"]) == []

    done = b'<?xml version="1.0"?><s3:DeleteResult xmlns:s3="urn:any"/>'
    replies = [answer(status, body), answer(204), refusal(503, "SlowDown"), answer(200, done)]
    requests = scripted(replies, test)
    assert [request.method for request in requests] == ["POST", "DELETE", "DELETE", "POST"]


def test_delete_goes_one_by_one_where_there_is_no_bulk_delete() -> None:
    """A store without the call is asked for it once under each checksum; then keys are deleted singly, and a
    refused one comes back."""

    async def test(store: S3ObjectStore) -> None:
        assert await store.delete(["c/1"]) == []
        assert await store.delete(["c/2"]) == ["c/2"]
        assert await store.delete(["c/3"]) == []

    never = refusal(501, "NotImplemented")
    replies = [never, never, answer(204), refusal(503, "SlowDown"), refusal(404, "NoSuchKey")]
    requests = scripted(replies, test)
    assert [request.method for request in requests] == ["POST", "POST", "DELETE", "DELETE", "DELETE"]


@pytest.mark.parametrize("has_checksums", [True, False])
def test_delete_goes_under_the_checksum_that_the_store_takes(has_checksums: bool) -> None:
    """One that wants Content-MD5 is sent a CRC32 once, and Content-MD5 from then on; one that is to be sent
    no checksums is sent Content-MD5 at once, for S3 demands one of the two. Never both."""

    async def test(store: S3ObjectStore) -> None:
        assert await store.delete(["c/1", "c/2"]) == []
        assert await store.delete(["c/3"]) == []

    done = answer(200, b"<DeleteResult></DeleteResult>")
    replies = [refusal(400, "MissingContentMD5"), done, done] if has_checksums else [done, done]
    requests = scripted(replies, test, has_checksums=has_checksums)
    for request in requests[1 if has_checksums else 0 :]:
        sent = base64.b64encode(md5(request.body, usedforsecurity=False).digest()).decode()
        assert request.headers["content-md5"] == sent
        assert not [name for name in request.headers if "checksum" in name]
        assert "content-md5" in request.headers["authorization"]
    if has_checksums:
        assert "x-amz-checksum-crc32" in requests[0].headers
        assert "content-md5" not in requests[0].headers
    assert [request.method for request in requests] == ["POST"] * (3 if has_checksums else 2)


def test_delete_bulk_is_cut_at_a_thousand() -> None:
    """More keys than one call takes go out in several."""

    async def test(store: S3ObjectStore) -> None:
        assert await store.delete([f"c/{number}" for number in range(1001)]) == []

    requests = scripted([answer(200, b"<DeleteResult></DeleteResult>")] * 2, test)
    assert [request.body.count(b"<Key>") for request in requests] == [1000, 1]


def _upload(then: list[Answer], test: Callable[[MultipartUpload], Awaitable[None]]) -> list[Request]:
    """A multipart upload with one part sent, its completion scripted."""
    made = b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"

    async def run(store: S3ObjectStore) -> None:
        upload = await store.start_multipart("c/a")
        await upload.put_part([b"12345"])
        await test(upload)

    return scripted([answer(200, made), answer(200, ETag='"e1"'), *then], run)


def test_a_completed_upload_whose_answer_was_lost() -> None:
    """The repeat finds no upload, but the object in its size: that is success. Without the object the upload
    is gone for good."""

    async def survives(upload: MultipartUpload) -> None:
        with pytest.raises(StoreUnavailable):
            await upload.complete()
        await upload.complete()

    async def is_gone(upload: MultipartUpload) -> None:
        with pytest.raises(ObjectMissing):
            await upload.complete()

    gone = refusal(404, "NoSuchUpload")
    # An answer to HEAD has a length and no body.
    there = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nLast-Modified: Tue, 01 Jan 2030 00:00:00 GMT\r\n\r\n"
    requests = _upload([CUT, gone, there], survives)
    assert [request.method for request in requests] == ["POST", "PUT", "POST", "POST", "HEAD"]
    assert b"<ChecksumCRC32C>" in requests[2].body
    _upload([gone, answer(404), refusal(404, "NoSuchKey")], is_gone)


@pytest.mark.parametrize(
    ("code", "remedy"), [("NoSuchBucket", BucketMissing), ("InvalidAccessKeyId", StoreDenied)]
)
def test_a_head_that_finds_nothing_asks_what_is_missing(code: str, remedy: type[Exception]) -> None:
    """404 of a HEAD says of an object that is not there what it says of a bucket that is gone, and of keys
    that nobody has: none of these is an empty store. With a store that has said that it was the object, no
    more than one in 30 s asks."""

    async def is_empty(store: S3ObjectStore) -> None:
        for _ in range(3):
            assert await store.head("c/a") is None

    async def is_none(store: S3ObjectStore) -> None:
        for _ in range(2):
            with pytest.raises(StoreDenied) as denied:
                await store.head("c/a")
            assert type(denied.value) is remedy
            assert code in str(denied.value)

    requests = scripted([answer(404), refusal(404, "NoSuchKey"), answer(404), answer(404)], is_empty)
    assert [request.method for request in requests] == ["HEAD", "GET", "HEAD", "HEAD"]
    scripted([answer(404), refusal(404, code)] * 2, is_none)


def test_a_completion_that_failed_within_a_200_is_unavailable() -> None:
    """S3 may begin a 200 and then report an error in the body; that is no success."""

    async def test(upload: MultipartUpload) -> None:
        with pytest.raises(StoreUnavailable):
            await upload.complete()

    _upload([answer(200, b"<Error><Code>InternalError</Code><Message>no</Message></Error>")], test)


def test_uploads_are_listed_in_pages() -> None:
    """Page after page by the markers of the last; what is beside the prefix or has no date is left out, and a
    page that leads nowhere is the last."""

    def page(keys: Sequence[str], tail: str) -> bytes:
        began = "<Initiated>2026-01-02T03:04:05.000Z</Initiated>"
        each = "".join(
            f"<Upload><Key>{key}</Key><UploadId>of-{key}</UploadId>"
            f"{began if key != 'c/undated' else ''}</Upload>"
            for key in keys
        )
        return answer(200, f"<ListMultipartUploadsResult>{each}{tail}</ListMultipartUploadsResult>".encode())

    more = (
        "<IsTruncated>true</IsTruncated><NextKeyMarker>c/b</NextKeyMarker>"
        "<NextUploadIdMarker>of-c/b</NextUploadIdMarker>"
    )

    async def test(store: S3ObjectStore) -> None:
        found = await uploads_of(store, "c/")
        assert [upload.key for upload in found] == ["c/a", "c/b", "c/c"]
        assert {upload.began_ms for upload in found} == {1_767_323_045_000}
        await found[1].abort()

    pages = [page(["c/a", "c/b", "d/a", "c/undated"], more), page(["c/c"], more), answer(204)]
    first, second, ended = scripted(pages, test)
    assert first.path == "/b?uploads&prefix=c%2F"
    assert sorted(second.path.partition("?")[2].split("&")) == [
        *("key-marker=c%2Fb", "prefix=c%2F", "upload-id-marker=of-c%2Fb", "uploads")
    ]
    assert (ended.method, ended.path) == ("DELETE", "/b/c/b?uploadId=of-c%2Fb")


@pytest.mark.parametrize(
    ("reply", "remedy"),
    [
        (refusal(501, "NotImplemented"), StoreDenied),
        (refusal(403, "AccessDenied"), StoreDenied),
        (answer(200, b"what is this?"), StoreUnavailable),
        (answer(200, b"<ListMultipart"), StoreUnavailable),
    ],
)
def test_a_store_that_lists_no_uploads_says_so(reply: bytes, remedy: type[Exception]) -> None:
    """It has no such call, allows it to nobody, or answers something else: each has a remedy."""

    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(remedy):
            await uploads_of(store, "c/")

    assert len(scripted([reply], test)) == 1


def test_a_missing_bucket_is_denied(endpoint: str) -> None:
    """A bucket that is not there is an operator's matter: no verb takes it for a missing object or waits for
    it."""

    async def main() -> None:
        store = await S3ObjectStore.open(
            S3Settings(bucket="nowhere", endpoint=endpoint, **KEYS), shared_session()
        )
        for call in (store.put("a", [b"x"]), store.get("a"), keys_of(store), store.delete(["a"])):
            with pytest.raises(StoreDenied):
                await call
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (404, "NoSuchKey", ObjectMissing),
        (404, "NoSuchUpload", ObjectMissing),
        (404, "404", ObjectMissing),
        (404, "", ObjectMissing),
        (404, "InvalidAccessKeyId", StoreDenied),
        (404, "XAdminUserNotFound", StoreDenied),
        (404, "NoSuchBucket", BucketMissing),
        (412, "PreconditionFailed", PreconditionFailed),
        (409, "ConditionalRequestConflict", StoreConflict),
        (429, "TooManyRequests", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (503, "SlowDown", StoreUnavailable),
        (200, "SlowDown", StoreUnavailable),
        (400, "RequestTimeout", StoreUnavailable),
        (400, "BadDigest", StoreUnavailable),
        (507, "InsufficientStorage", StoreFull),
        (400, "XMinioStorageFull", StoreFull),
        (401, "Unauthorized", StoreDenied),
        (403, "AccessDenied", StoreDenied),
        (403, "SignatureDoesNotMatch", StoreDenied),
        (501, "NotImplemented", StoreDenied),
        (400, "InvalidArgument", StoreDenied),
    ],
)
def test_each_refusal_has_its_remedy(status: int, code: str, remedy: type[Exception]) -> None:
    """The table of answers, as the module's head draws it."""
    assert type(s3_refusal(status, code, "k")) is remedy


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_who_does_not_answer_is_named_plainly(scheme: str) -> None:
    """Of both clients, bodies' and the library's: host, port and the system's words, and nothing of TLS that
    nobody asked for."""

    async def main() -> None:
        port = free_port()
        settings = S3Settings(bucket="lake", endpoint=f"{scheme}://127.0.0.1:{port}", **KEYS)
        store = await S3ObjectStore.open(settings, shared_session())
        for call in (store.put("k", [b"x"]), store.get("k"), keys_of(store)):
            with pytest.raises(StoreUnavailable) as away:
                await call
            assert (
                str(away.value).removeprefix("k: ")
                == f"cannot connect to 127.0.0.1:{port}: Connection refused"
            )
        await store.close()

    asyncio.run(main())


def test_chunks_join_the_small_and_slice_the_large() -> None:
    """Bodies are cut near the chunk size, whatever the sizes of the parts, and nothing is lost or moved."""
    small, large = [b"%03d" % number for number in range(500)], bytes(range(256)) * (CHUNK_BYTES // 100)
    for parts in (
        [*small, large, *small],
        [large, large],
        [large, b"x"],
        [b"x" * CHUNK_BYTES],
        [],
        [b"", b"x"],
    ):
        cut = list(chunks(parts))
        assert b"".join(cut) == b"".join(parts)
        assert all(0 < len(chunk) < 2 * CHUNK_BYTES for chunk in cut)
        assert len(cut) <= 2 * (sum(map(len, parts)) // CHUNK_BYTES) + 3


def test_credentials_come_from_the_environment_when_the_address_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without keys the usual chain is asked."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    async def test(store: S3ObjectStore) -> None:
        await store.put("a", [b"x"])

    [request] = scripted([answer(200, ETag='"x"')], test, access_key=None, secret_key=None)
    assert "Credential=from-environment/" in request.headers["authorization"]
