"""A controller listener as far as members of a quorum need one: requests in, answers out, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from millrace.kraft.tables.features import SUPPORTED
from millrace.protocol.apis import ALL, API, CONTROLLER
from millrace.protocol.codec import decode_request, encode_response
from millrace.protocol.frame import FrameSplitter
from millrace.protocol.header import decode_request_header
from millrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)

FRAME_BYTES_MAX = 16 << 20
Answer = Callable[[Any], Awaitable[Any]]


def served(**max_versions: int) -> ApiVersionsResponse:
    """What a controller listener serves; a version by the name of its API lowers the highest."""
    apis = [api for api in ALL if api.listeners & CONTROLLER]
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api.key, api.min_version, max_versions.get(api.name, api.max_stable_version))
            for api in apis
        ],
        supported_features=[
            SupportedFeatureKey(one.name, one.min_level, one.max_level) for one in SUPPORTED if one.max_level
        ],
    )


class MemberConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, answer: Answer, versions: ApiVersionsResponse | None = None) -> None:
        self._answer = answer
        self._versions = versions or served()
        self._splitter = FrameSplitter(FRAME_BYTES_MAX)
        self._frames: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            self._frames.put_nowait(bytes(frame))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        while True:
            frame = await self._frames.get()
            header, position = decode_request_header(frame)
            api = API[header.api_key]
            request = decode_request(api, header.api_version, frame, position)
            try:
                is_first = isinstance(request, ApiVersionsRequest)
                response = self._versions if is_first else await self._answer(request)
            except TimeoutError:
                self.transport.abort()
                return
            for part in encode_response(api, header.api_version, header.correlation_id, response):
                self.transport.write(part)
