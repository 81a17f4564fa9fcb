"""meta.properties: ours, Kafka's, and what is neither."""

from __future__ import annotations

import pytest

from millrace.kraft.errors import LogCorrupt
from millrace.kraft.log.meta_properties import MetaProperties, read_meta_properties, write_meta_properties
from tests.kraft.build import run, sim_disk

META = MetaProperties("SvgqiJdiSG6BIymq0ysZBg", 1, "xkDZSmQQTUuKP4DfPAVnPA")
KAFKAS = b"""#
#Sat Nov 21 10:56:12 UTC 2026
node.id=1
directory.id=xkDZSmQQTUuKP4DfPAVnPA
version=1
cluster.id=SvgqiJdiSG6BIymq0ysZBg
"""


def test_it_comes_back() -> None:
    """As written, and as Kafka's format tool writes it."""

    async def main() -> None:
        disk = sim_disk()
        assert await read_meta_properties(disk, "/data") is None
        await write_meta_properties(disk, "/data", META)
        assert await read_meta_properties(disk, "/data") == META
        await disk.write_file("/data/meta.properties", KAFKAS)
        assert await read_meta_properties(disk, "/data") == META

    run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        KAFKAS.replace(b"version=1", b"version=0"),
        KAFKAS.replace(b"node.id=1", b"node.id=one"),
        KAFKAS.replace(b"cluster.id", b"cluster"),
        KAFKAS.replace(b"xkDZ", b""),
        b"\xff\xfe",
    ],
)
def test_what_is_none_is_refused(data: bytes) -> None:
    """A file that cannot be understood is never taken for a new directory."""

    async def main() -> None:
        disk = sim_disk()
        await disk.write_file("/data/meta.properties", data)
        with pytest.raises(LogCorrupt, match=r"not a meta\.properties"):
            await read_meta_properties(disk, "/data")

    run(main())
