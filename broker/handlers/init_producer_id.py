"""InitProducerId (key 22): an id and epoch 0 for a producer that wants its retries told apart.

Versions 0 to 5. Ignored: `transaction_timeout_ms`, `enable2_pc`, `keep_prepared_txn`.

An idempotent producer gets a new id each time, whatever it says it has, as long as that is an id and an epoch
or neither. Transactional ids are refused with a code that is not retried: there are no transactions yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from millrace.broker.producer_ids import ProducerIds
from millrace.broker.requests.request import RequestContext
from millrace.broker.requests.transaction_refusals import TransactionRefusals
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millrace.runtime.errors import MillraceError

LEASE_TIMEOUT_S = 15.0
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


class InitProducerId:
    def __init__(self, ids: ProducerIds, refusals: TransactionRefusals) -> None:
        self._ids = ids
        self._refusals = refusals

    def handle(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Coroutine[Any, Any, InitProducerIdResponse]:
        context.connection.is_producing = True
        if request.transactional_id == "":
            return _failed(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is not None:
            return _failed(self._refusals.producer_code(context, request.transactional_id))
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            return _failed(ErrorCode.INVALID_REQUEST)
        taken = self._ids.take_at_once()
        return self._answer_later() if taken is None else InitProducerIdResponse(producer_id=taken)

    def refuse(self, request: InitProducerIdRequest, code: int) -> InitProducerIdResponse:
        return _failed(code)

    async def _answer_later(self) -> InitProducerIdResponse:
        try:
            async with asyncio.timeout(LEASE_TIMEOUT_S):
                return InitProducerIdResponse(producer_id=await self._ids.take())
        except (TimeoutError, MillraceError, KafkaError):
            # The one code that every producer takes for "ask again", whatever kept the controller from
            # answering.
            return _failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _failed(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(code), producer_epoch=NO_PRODUCER_EPOCH)
