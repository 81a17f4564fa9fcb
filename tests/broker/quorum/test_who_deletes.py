"""Who deletes objects in a cluster: the controller that leads, and no broker beside it."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker import app
from millrace.broker.quorum import duties
from tests.sim.cluster.test_cut_off import Cut, cut


def test_a_clusters_broker_builds_nothing_that_deletes_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would delete what the other has marked, by images that differ."""
    built: list[str] = []

    def noted(name: str, made: type) -> Any:
        def make(*parts: Any) -> Any:
            built.append(name)
            return made(*parts)

        return make

    monkeypatch.setattr(app, "ObjectCleaner", noted("broker", app.ObjectCleaner))
    monkeypatch.setattr(duties, "ObjectCleaner", noted("controller", duties.ObjectCleaner))

    async def scenario(cluster: Cut) -> None:
        assert all(machine.process is not None for machine in cluster.run.brokers)

    cut(scenario)
    assert set(built) == {"controller"}
