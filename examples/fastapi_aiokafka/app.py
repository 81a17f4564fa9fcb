"""An HTTP service that publishes what it is sent, with FastAPI and aiokafka: the code under test."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer
from fastapi import FastAPI, Request


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    producer = AIOKafkaProducer(bootstrap_servers=os.environ["KAFKA_BOOTSTRAP_SERVERS"])
    await producer.start()
    app.state.producer = producer
    yield
    await producer.stop()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def accept(order: dict[str, int], request: Request) -> dict[str, int]:
    sent = await request.app.state.producer.send_and_wait("orders", json.dumps(order).encode(), key=b"orders")
    return {"offset": sent.offset}
