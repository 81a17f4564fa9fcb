"""A service that reads orders and publishes invoices, with confluent-kafka: the code under test."""

import json

from confluent_kafka import Consumer, Producer


class Billing:
    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap_servers})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe(["orders"])

    def run(self, count: int) -> None:
        """Bills that many orders; each is committed when its invoice is out."""
        while count:
            message = self._consumer.poll(1.0)
            if message is None or message.error():
                continue
            order = json.loads(message.value())
            invoice = {"order": order["id"], "total": order["price"] * order["pieces"]}
            self._producer.produce("invoices", json.dumps(invoice), key=message.key())
            self._producer.flush()
            self._consumer.commit(message, asynchronous=False)
            count -= 1

    def close(self) -> None:
        self._consumer.close()
