"""meta.properties: which cluster and which node a log directory belongs to. Kafka's file, version 1.

Written once, after the metadata log's first segment exists: a directory that has it has, or has lost, a log.
Not here: what is refused when WAL or bucket belong to another cluster (the broker).
"""

from __future__ import annotations

from millrace.kraft.errors import LogCorrupt
from millrace.protocol.dataclass import dataclass
from millrace.protocol.ids import uuid_bytes
from millrace.runtime.disk import Disk
from millrace.runtime.errors import in_words

FILE = "meta.properties"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    cluster_id: str
    node_id: int
    directory_id: str  # of this log directory, a uuid as text


async def read_meta_properties(disk: Disk, log_dir: str) -> MetaProperties | None:
    """None when the directory was never used. Raises LogCorrupt where the file cannot be understood."""
    path = f"{log_dir}/{FILE}"
    data = await disk.read_file(path)
    if data is None:
        return None
    try:
        values = parse_properties(data.decode())
        if values.get("version") != "1":
            raise ValueError(f"version {values.get('version')}, not 1")
        directory_id = values["directory.id"]
        uuid_bytes(directory_id)
        return MetaProperties(values["cluster.id"], int(values["node.id"]), directory_id)
    except (KeyError, ValueError) as error:
        raise LogCorrupt(path, 0, f"not a meta.properties: {in_words(error)}") from error


async def write_meta_properties(disk: Disk, log_dir: str, meta: MetaProperties) -> None:
    """Durable on return."""
    lines = [
        f"cluster.id={meta.cluster_id}",
        f"directory.id={meta.directory_id}",
        f"node.id={meta.node_id}",
        "version=1",
    ]
    await disk.write_file(f"{log_dir}/{FILE}", ("\n".join(["#", *lines]) + "\n").encode())


def parse_properties(text: str) -> dict[str, str]:
    """As far as Java's format is used here: lines KEY=VALUE, comments, spaces around both."""
    values = {}
    for line in text.splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith(("#", "!")):
            values[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return values
