"""AloneBroker: a broker that is its own whole quorum. Where its metadata is that of a cluster that was
larger, it recovers the write-ahead logs of the brokers that are gone, as far as it reaches them, and leads
what they led.

Not here: when that is asked of it (kraft/broker_watch.py), the recovery (log_recovery.py), the word that a
log is lost (`millrace cluster give-up`). Kept true: a broker that never had company loads nothing of it.
"""

from __future__ import annotations

from millrace.broker.app import Broker
from millrace.broker.handlers import Parts
from millrace.broker.quorum.remote_backup import RemoteBackup
from millrace.broker.stores import NodeStores
from millrace.kraft.bucket.writer import MetadataBackup
from millrace.kraft.node import ControllerNode


class AloneBroker(Broker):
    _backup: MetadataBackup | RemoteBackup  # once it is registered
    _stores: NodeStores  # likewise

    def _start_backup(self, node: ControllerNode, stores: NodeStores) -> MetadataBackup | RemoteBackup:
        self._stores, self._backup = stores, super()._start_backup(node, stores)
        return self._backup

    async def _serve(self, node: ControllerNode, parts: Parts) -> None:
        """Nobody joins a quorum of one: brokers that are not registered by now never will be."""
        await super()._serve(node, parts)
        if len(node.publisher.image.brokers) == 1:
            return
        from millrace.broker.quorum.failovers import start_failovers

        own = self._settings, self._runtime
        failovers = start_failovers(*own, node, parts.client, self._stores, self._backup)
        self._endings.add("failovers", failovers.stop)
