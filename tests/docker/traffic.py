"""Clients at work while containers come and go: `python -m tests.docker.traffic ADDRESS[,ADDRESS...]`.

Idempotent producers, which wait for all, and a group (tests/live/traffic.py), until standard input ends. Then
all is read anew and compared with what they were told, and one line of JSON says how it went.
"""

from __future__ import annotations

import json
import logging
import sys

from kafka import KafkaAdminClient

from tests.live.traffic import Traffic
from tests.patience import until

TOPIC, PARTITIONS = "traffic", 6
BEGUN = "begun"


def main(addresses: str) -> int:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it tells of every node that is away
    admin = KafkaAdminClient(bootstrap_servers=addresses)
    admin.create_topics({TOPIC: {"num_partitions": PARTITIONS, "replication_factor": 1}})
    admin.close()
    traffic = Traffic(addresses.split(","), TOPIC, PARTITIONS)
    traffic.start()
    try:
        until(lambda: all(traffic.told.acknowledged), "nothing is acknowledged")
        print(BEGUN, flush=True)
        sys.stdin.read()
    finally:
        traffic.finish()
    told = traffic.told
    print(
        json.dumps(
            {
                "acknowledged": traffic.check(),
                "read": sum(told.read.values()),
                "longest_send_s": round(max(told.send_s), 1),
                "errors": told.errors[:5],
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
