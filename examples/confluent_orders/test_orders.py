"""Billing against a real broker: results, offsets, and what happens when the broker refuses or dies."""

from orders import Billing

from millrace.testing import Broker, TopicPartition

ORDER = {"id": 1, "price": 5, "pieces": 3}


def test_an_order_becomes_an_invoice(kafka: Broker) -> None:
    kafka.produce("orders", ORDER, key="customer-1")
    billing = Billing(kafka.bootstrap_servers)
    billing.run(1)
    billing.close()
    (invoice,) = kafka.wait_for_records("invoices", 1)
    assert (invoice.key, invoice.json()) == (b"customer-1", {"order": 1, "total": 15})
    assert kafka.committed("billing") == {TopicPartition("orders", 0): 1}
    assert kafka.lag("billing") == 0


def test_a_refused_produce_is_tried_again(kafka: Broker) -> None:
    kafka.produce("orders", ORDER)
    kafka.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    billing = Billing(kafka.bootstrap_servers)
    billing.run(1)
    billing.close()
    assert len(kafka.records("invoices")) == 1


def test_a_broker_that_is_killed_in_between(kafka: Broker) -> None:
    kafka.produce("orders", ORDER, {**ORDER, "id": 2})
    billing = Billing(kafka.bootstrap_servers)
    billing.run(1)
    kafka.kill()
    kafka.start()
    billing.run(1)
    billing.close()
    assert [invoice.json()["order"] for invoice in kafka.records("invoices")] == [1, 2]
