"""A FastStream application that turns orders into invoices: the code under test."""

from faststream import FastStream
from faststream.kafka import KafkaBroker
from pydantic import BaseModel


class Order(BaseModel):
    id: int
    price: int


class Invoice(BaseModel):
    order: int
    total: int


def build(bootstrap_servers: str) -> FastStream:
    broker = KafkaBroker(bootstrap_servers)

    @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
    @broker.publisher("invoices")
    async def bill(order: Order) -> Invoice:
        return Invoice(order=order.id, total=order.price)

    return FastStream(broker)
