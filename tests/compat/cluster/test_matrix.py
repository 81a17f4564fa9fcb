"""Each client writes every kind of record in every codec while nodes are restarted, and each reads what each
other wrote: tests/compat/test_records.py on a cluster."""

from __future__ import annotations

import pytest

from tests.compat.cluster.conftest import RolledCluster
from tests.compat.conftest import Clients
from tests.compat.test_records import Matrix, test_what_is_stored_is_read, test_what_is_written_is_stored

__all__ = ["test_what_is_stored_is_read", "test_what_is_written_is_stored"]


@pytest.fixture(scope="session")
def matrix(clients: Clients, broker: RolledCluster) -> Matrix:
    return Matrix(clients, broker)  # type: ignore[arg-type]  # it asks for the address alone
