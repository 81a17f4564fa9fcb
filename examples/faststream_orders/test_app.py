"""The application with its real broker, groups and serialization: what FastStream's TestBroker leaves out."""

import asyncio

from app import build

from millrace.testing import Broker


def test_an_order_becomes_an_invoice(kafka: Broker) -> None:
    async def run() -> None:
        app = build(kafka.bootstrap_servers)
        await app.start()
        try:
            await kafka.aio.produce("orders", {"id": 1, "price": 5})
            (invoice,) = await kafka.aio.wait_for_records("invoices", 1)
            assert invoice.json() == {"order": 1, "total": 5}
        finally:
            await app.stop()
        assert await kafka.aio.groups() == {"billing": "Empty"}

    asyncio.run(run())
