from millrace.protocol.primitives import Buffer

VERSION: int

def walk(
    records: Buffer, count: int, base_timestamp: int, earliest: int, latest: int, needs_keys: bool, /
) -> int | tuple[int, int, list[int], list[int]]: ...
