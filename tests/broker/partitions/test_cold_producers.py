"""Ids of producers in the log against a dict; and the layout of blocks and of their index."""

from __future__ import annotations

import random

import pytest

from millrace.broker.partitions.cold_producers import (
    COLD_BYTES,
    ColdProducers,
    decode_block_head,
    decode_index,
    encode_block,
    encode_index,
    find_row,
    iter_rows,
)
from millrace.broker.state_memory import StateMemory
from millrace.runtime.errors import Corrupt


@pytest.mark.parametrize("seed", range(4))
def test_any_history_of_ids_is_as_a_dict_has_it(seed: int) -> None:
    """Added in order or anywhere, moved to later blocks, removed, expired with their block, swept: each id is
    in the block that had it last, and charges are those of the ids that are there."""
    chance = random.Random(seed)
    memory = StateMemory()
    cold, model = ColdProducers(memory), dict[int, int]()
    holders = [memory.holder(f"{number}") for number in range(3)]
    following = 0
    for _ in range(300):
        action = chance.random()
        if action < 0.5:
            number = cold.begin_block(0, 0)
            for _ in range(chance.randint(1, 80)):
                following += 1
                producer_id = following if chance.random() < 0.7 else chance.randrange(20_000)
                if model.get(producer_id) != number:
                    cold.add(producer_id, number, chance.choice(holders))
                    model[producer_id] = number
        elif action < 0.9:
            for producer_id in chance.sample(sorted(model), min(len(model), 30)):
                cold.remove(producer_id, chance.choice(holders))
                del model[producer_id]
        elif cold.blocks:
            number = chance.choice(sorted(cold.blocks))
            cold.expire(number)
            model = {producer_id: block for producer_id, block in model.items() if block != number}
            if chance.random() < 0.5:
                for _ in cold.sweep_yielding():
                    pass
        assert len(cold) == len(model)
        assert all(block.count for block in cold.blocks.values())
    assert [cold.block_of(producer_id) for producer_id in range(20_000)] == [
        model.get(one) for one in range(20_000)
    ]
    assert memory.used_bytes >= COLD_BYTES * len(model)
    for producer_id in list(model):
        cold.remove(producer_id, holders[0])
    assert memory.used_bytes == 0
    assert not cold


def test_blocks_and_indexes_come_back() -> None:
    """Rows, ids, ages and numbers as they were written."""
    rows = [(-5, b"a"), (7, b""), (1 << 40, b"long" * 50)]
    value = encode_block(rows, 12_345)
    head = decode_block_head(value)
    assert (list(head.ids), head.age_ms) == ([-5, 7, 1 << 40], 12_345)
    assert [(producer_id, bytes(row)) for producer_id, row in iter_rows(value)] == rows
    assert [find_row(value, producer_id) for producer_id, _ in rows] == [row for _, row in rows]
    assert [find_row(value, producer_id) for producer_id in (-6, 0, 8, 1 << 41)] == [None] * 4
    assert decode_index(encode_index(99, {3: 4, 5: 6})) == (99, {3: 4, 5: 6})


def test_bytes_that_are_no_block_are_refused() -> None:
    """Each cut, a tail too many, a later version and ids out of order raise Corrupt."""
    value = encode_block([(1, b"abc"), (2, b"de")], 0)
    wrong = [value[:end] for end in range(len(value))] + [value + b"x", b"\x02" + value[1:]]
    for data in wrong:
        with pytest.raises(Corrupt):
            list(iter_rows(data))
    with pytest.raises(Corrupt):
        decode_block_head(encode_block([(2, b""), (1, b"")], 0))
    index = encode_index(1, {2: 3})
    for data in (index[:-1], index[:7], b"\x02" + index[1:]):
        with pytest.raises(Corrupt):
            decode_index(data)
