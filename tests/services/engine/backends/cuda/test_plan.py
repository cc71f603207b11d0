"""Plans balance the programs, and name every position of every tile once."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from services.engine.backends.cuda.layers import PARTIAL_SPLITS
from services.engine.backends.cuda.plan import Planner, Tiles, plan
from services.engine.batch.flat_batch import FlatBatch, Numbers, pack_batch
from services.engine.batch.request_state import RequestState
from services.engine.spec import AttentionSpec
from services.requests import SamplingParams

TILES = Tiles(rows=16, keys=64, split=256)
SPLIT = TILES.split


def batch_of(spans: list[tuple[int, int]]) -> FlatBatch:
    """Of requests with so many positions before and in this iteration."""
    rows = []
    for context, count in spans:
        row = RequestState("r", [0] * (context + count), 1, SamplingParams(1), context)
        row.blocks.extend(range(-(-(context + count) // 16)))
        rows.append((row, count))
    return pack_batch(rows, 16)


def attention(group: int, kv_heads: int, window: int = 0) -> AttentionSpec:
    return AttentionSpec(group * kv_heads, kv_heads, 64, 0.125, window)


def lengths_of(items: Numbers, group: int, rows: int, window: int = 0) -> Numbers:
    """Positions that each item reads."""
    height = np.minimum(rows, items[:, 1] - items[:, 4])
    end = items[:, 2] + (items[:, 4] + height - 1) // group + 1
    seen = np.maximum(items[:, 2] + items[:, 4] // group + 1 - window, 0) if window else np.zeros_like(end)
    begin = np.maximum(items[:, 5] * SPLIT, seen // TILES.keys * TILES.keys)
    lengths: Numbers = np.minimum(items[:, 6] * SPLIT, end) - begin
    return lengths


@settings(deadline=None, max_examples=60)
@given(
    contexts=st.lists(st.sampled_from([0, 255, 4096, 32_000, 131_000]), min_size=1, max_size=256),
    kv_heads=st.sampled_from([1, 8]),
    group=st.sampled_from([1, 4, 16, 17, 48, 71]),
    tiles=st.sampled_from([TILES, Tiles(rows=64, keys=64, split=256)]),
    splits=st.sampled_from([PARTIAL_SPLITS, 7]),
)
def test_a_graph_has_room_for_all_items(
    contexts: list[int], kv_heads: int, group: int, tiles: Tiles, splits: int
) -> None:
    """Also where a token has more queries for a KV head than a tile has rows."""
    planner = Planner(attention(group, kv_heads), tiles, 132, splits * group)
    items, _ = planner(batch_of([(context, 1) for context in contexts]))
    assert len(items) <= planner.most_items(len(contexts))


@pytest.mark.parametrize("group", [4, 71])
def test_most_items_are_reached(group: int) -> None:
    """By few requests with the longest contexts."""
    tiles = Tiles(rows=64, keys=64, split=256)
    planner, contexts = Planner(attention(group, 1), tiles, 132, 100 * group), [25_599, 0]
    items, _ = planner(batch_of([(context, 1) for context in contexts]))
    assert planner.most_items(2) - len(items) <= -(-group // 64)


def makespan(lengths: Numbers, programs: int) -> int:
    """When the last program ends, if each takes the next item once it is free, as the kernel's do."""
    free = [0] * programs
    for length in lengths.tolist():
        heapq.heapreplace(free, free[0] + length)
    return max(free)


contexts = st.one_of(
    st.lists(st.integers(0, 9_000), min_size=1, max_size=80),
    st.tuples(st.integers(0, 9_000), st.integers(1, 256)).map(lambda pair: [pair[0]] * pair[1]),
    st.lists(st.sampled_from([0, 255, 256, 511, 4096, 32_000]), min_size=1, max_size=80),
)


@settings(deadline=None, max_examples=60)
@given(
    contexts=contexts,
    kv_heads=st.sampled_from([1, 2, 8, 12]),
    group=st.sampled_from([1, 4, 16, 71]),
    window=st.sampled_from([0, 0, 100, 1000]),
)
def test_no_program_ends_more_than_a_split_after_the_mean(
    contexts: list[int], kv_heads: int, group: int, window: int
) -> None:
    """Increments of any contexts for which there is room. So the last one ends at most 5% after the mean once programs
    have twenty splits each; no order of four items for each does better than the length of an item."""
    programs = 264
    batch = batch_of([(context, 1) for context in contexts])
    rows = sum(context // SPLIT + 1 for context in contexts) * group
    items = plan(batch, attention(group, kv_heads, window), TILES, programs, rows)
    lengths = np.repeat(lengths_of(items, group, TILES.rows, window), kv_heads)
    assert (np.diff(lengths) <= 0).all()
    assert makespan(lengths, programs) <= lengths.sum() / programs + SPLIT


@settings(deadline=None, max_examples=60)
@given(
    spans=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 70)), min_size=1, max_size=30),
    group=st.sampled_from([1, 4]),
    partial_rows=st.sampled_from([0, 40, 500, 100_000]),
    window=st.sampled_from([0, 0, 1, 300]),
)
def test_every_split_of_every_tile_is_there_once(
    spans: list[tuple[int, int]], group: int, partial_rows: int, window: int
) -> None:
    """Also beside prompts, and where there is little room: then no program ends later than its longest item after the
    mean. Parts of tiles have rows of their own. With a window, splits before it are left out."""
    items = plan(batch_of(spans), attention(group, 2, window), TILES, 64, partial_rows)
    found: dict[tuple[int, int], list[int]] = {}
    rows: set[int] = set()
    for start, count, context, _, first, begin, end, partial in items.tolist():
        found.setdefault((start, first), []).extend(range(begin, end))
        height = min(TILES.rows, count - first)
        before = max(context + first // group + 1 - window, 0) // SPLIT if window else 0
        assert partial >= 0 or begin == before
        if partial >= 0:
            assert end == begin + 1
            mine = set(range(partial + (begin - before) * height, partial + (end - before) * height))
            assert not mine & rows
            rows |= mine
        assert context + (first + height - 1) // group + 1 <= context + count // group
    assert len(rows) <= partial_rows
    assert max(rows, default=-1) < max(partial_rows, 1)
    ends = {(item[0], item[4]): item for item in items.tolist()}
    for (start, first), splits in found.items():
        _, count, context, *_ = ends[start, first]
        before = max(context + first // group + 1 - window, 0) // SPLIT if window else 0
        last = (context + (first + min(TILES.rows, count - first) - 1) // group) // SPLIT
        assert sorted(splits) == list(range(before, last + 1)), (start, first)
    lengths = np.repeat(lengths_of(items, group, TILES.rows, window), 2)
    assert makespan(lengths, 64) <= lengths.sum() / 64 + lengths.max()


@pytest.mark.parametrize(
    ("contexts", "least"),
    [
        ([4096] * 32, 0.96),
        ([64 + 260 * i for i in range(32)], 0.96),
        ([512] * 128, 0.94),
        ([64 * i for i in range(128)], 0.94),
    ],
)
def test_balance(contexts: list[int], least: float) -> None:
    """Of the mean, for 32 heads that share keys by fours, with the room that layers have."""
    items = plan(batch_of([(context, 1) for context in contexts]), attention(4, 8), TILES, 264, 4 * PARTIAL_SPLITS)
    lengths = np.repeat(lengths_of(items, 4, TILES.rows), 8)
    assert lengths.sum() / 264 >= least * makespan(lengths, 264)
