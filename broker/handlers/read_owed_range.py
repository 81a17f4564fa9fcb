"""ReadOwedRange (key 530): what this broker's write-ahead log owes of a stream, for the stream's owner.

Version 0. No field is ignored. What is owed is in memory until it is uploaded, so that no answer waits for
the store. Not here: who asks, and what becomes of refusals (broker/owed_range_reader.py).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from millrace.broker.errors import code_of
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.read_owed_range import ReadOwedRangeRequest, ReadOwedRangeResponse
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Fenced, MillraceError, in_words
from millrace.s3stream.ids import NO_WAL, StreamId
from millrace.s3stream.objects.format import encode_entry_header
from millrace.s3stream.storage import Storage

# In one answer, whatever is asked for; one entry that is larger is given all the same.
ANSWER_BYTES_MAX: Final = 1 << 20


class ReadOwedRange:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def handle(
        self, context: RequestContext, request: ReadOwedRangeRequest
    ) -> Coroutine[Any, Any, ReadOwedRangeResponse]:
        return self._answer(request)

    def refuse(self, request: ReadOwedRangeRequest, code: int) -> ReadOwedRangeResponse:
        return ReadOwedRangeResponse(int(code))

    async def _answer(self, request: ReadOwedRangeRequest) -> ReadOwedRangeResponse:
        stream_id = StreamId(request.stream_id)
        wanted_bytes = max(1, min(request.max_bytes, ANSWER_BYTES_MAX))
        if request.wal_id not in (NO_WAL, self._storage.wal_id):
            text = "what is asked for is owed by another write-ahead log"
            return ReadOwedRangeResponse(int(ErrorCode.FENCED_LEADER_EPOCH), text)
        try:
            entries = await self._storage.read_sealed(stream_id, request.epoch, request.offset, wanted_bytes)
        except Fenced as error:
            return ReadOwedRangeResponse(int(ErrorCode.FENCED_LEADER_EPOCH), in_words(error))
        except MillraceError as error:
            code = code_of(error) or ErrorCode.UNKNOWN_SERVER_ERROR
            return ReadOwedRangeResponse(int(code), in_words(error))
        parts: list[Buffer] = []
        for entry in entries:
            header = encode_entry_header(
                stream_id, entry.epoch, entry.base_offset, entry.count, (entry.data,)
            )
            parts += (header, entry.data)
        return ReadOwedRangeResponse(entries=b"".join(parts))
