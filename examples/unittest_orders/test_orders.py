"""A real broker without pytest: `python -m unittest`."""

import unittest

from kafka import KafkaProducer

from millrace.testing import Broker


class Orders(unittest.TestCase):
    kafka: Broker

    @classmethod
    def setUpClass(cls) -> None:
        cls.kafka = cls.enterClassContext(Broker())

    def test_publishing(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self.kafka.bootstrap_servers)
        producer.send("orders", b"1")
        producer.close()
        self.assertEqual([record.text for record in self.kafka.wait_for_records("orders", 1)], ["1"])


class AsyncOrders(unittest.IsolatedAsyncioTestCase):
    async def test_waiting(self) -> None:
        async with Broker() as kafka:
            await kafka.produce("orders", "1", key="a")
            (record,) = await kafka.wait_for_records("orders", 1)
            self.assertEqual(record.key, b"a")


if __name__ == "__main__":
    unittest.main()
