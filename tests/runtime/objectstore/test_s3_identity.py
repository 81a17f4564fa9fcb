"""Credentials of a web identity: the token of a file is exchanged for keys at an STS, and again before they
expire."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from aiohttp import web

from millrace.runtime.objectstore import StoreDenied
from millrace.runtime.objectstore.s3 import S3ObjectStore, S3Settings


class Sts:
    """Gives KEY1, KEY2, ... for the token `good`, each for so long."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self.count = 0

    async def exchange(self, request: web.Request) -> web.Response:
        asked = await request.post()
        if asked["Action"] != "AssumeRoleWithWebIdentity" or asked["WebIdentityToken"] != "good":
            said = "<Code>InvalidIdentityToken</Code><Message>no</Message>"
            error = f"<ErrorResponse><Error>{said}</Error></ErrorResponse>"
            return web.Response(status=400, text=error, content_type="text/xml")
        self.count += 1
        expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.seconds))
        keys = (
            f"<AccessKeyId>KEY{self.count}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
            f"<SessionToken>token{self.count}</SessionToken><Expiration>{expiry}</Expiration>"
        )
        answer = (
            "<AssumeRoleWithWebIdentityResponse "
            'xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>'
            f"<Credentials>{keys}</Credentials><AssumedRoleUser><Arn>a</Arn><AssumedRoleId>b</AssumedRoleId></AssumedRoleUser>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )
        return web.Response(text=answer, content_type="text/xml")


def puts_with(
    monkeypatch: pytest.MonkeyPatch, folder: Path, token: str, seconds: int, puts: int
) -> list[str]:
    """The access key and session token under which each of so many puts arrived."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (folder / "token").write_text(token)
    seen: list[str] = []

    async def take(request: web.Request) -> web.Response:
        await request.read()
        access_key = request.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        seen.append(f"{access_key} {request.headers['x-amz-security-token']}")
        return web.Response(headers={"ETag": '"e"'})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/", Sts(seconds).exchange)
        app.router.add_put("/lake/{key}", take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/broker")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(folder / "token"))
        store = await S3ObjectStore.open(S3Settings("lake", endpoint, "us-east-1", True))
        try:
            for _ in range(puts):
                await store.put("a", [b"x"])
        finally:
            await store.close()
            await runner.cleanup()

    asyncio.run(main())
    return seen


def test_a_token_is_exchanged_for_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys that are good for an hour are asked for once."""
    assert puts_with(monkeypatch, tmp_path, "good", 3600, 3) == ["KEY1 token1"] * 3


def test_keys_about_to_expire_are_renewed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The next request is signed with new ones; nothing fails in between."""
    first, second = puts_with(monkeypatch, tmp_path, "good", 30, 2)
    assert first != second
    assert int(first[3]) < int(second[3])


def test_a_token_that_is_refused_is_denied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the code the STS gave, for the operator."""
    with pytest.raises(StoreDenied, match="InvalidIdentityToken"):
        puts_with(monkeypatch, tmp_path, "stolen", 3600, 1)
