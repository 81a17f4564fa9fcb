"""A level that is raised while a process without a claim runs."""

from __future__ import annotations

import logging

import pytest

from millrace.broker.identity.unclaimed import Unclaimed
from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.tables.features import MILLRACE_VERSION
from millrace.protocol.metadata_records import FeatureLevelRecord, NoOpRecord


def test_a_process_without_a_claim_asks_for_a_restart_once(caplog: pytest.LogCaptureFixture) -> None:
    """When millrace.version 1 is finalized; not before, and not again."""
    publisher = MetadataPublisher(EMPTY_IMAGE)
    publisher.subscribe(Unclaimed(7).on_image)

    def publish(record: object) -> None:
        publisher.publish(*apply_records(publisher.image, [record], publisher.image.offset + 1, 0))

    with caplog.at_level(logging.WARNING):
        publish(NoOpRecord())
        assert caplog.messages == []
        publish(FeatureLevelRecord(MILLRACE_VERSION, 1))
        publish(NoOpRecord())
    [said] = caplog.messages
    assert "no claim on node 7: restart it now" in said
