"""The cost model against cases computed by hand."""

import pytest

from load.simulation.cost import Partition
from load.simulation.specs import A100_40GB, GPT_13B, GPT_101B, GPT_175B, GPT_341B, Gpu, Model, RingProtocol

ALL = ((0.0, 1.0),)  # every read reaches the peak

# 1 byte/s, 1 operation/s: seconds are bytes, or operations
UNIT = Gpu("unit", memory=1e6, bandwidth=1.0, rate=1.0, rings=(RingProtocol(7.0, 1.0, 2.0),), adapter=1.0, reads=ALL)
TINY = Model("tiny", 4, 2, linear=(6, 4), query_width=3, kv_width=4, vocabulary=6, embeddings=1, max_model_len=64)


def test_one_token_reads_every_weight_and_the_keys_and_values():
    gpu = Gpu("fast at products", 1e6, 1.0, 1e30, (), 1.0, ALL)
    time = Partition(TINY, gpu, ranks=1).iteration([(5, 1)], sampled=1)
    weights = 2 * 10 * 4
    keys_and_values = 2 * 4 * 4 * (5 + 1)
    head = 2 * 6 * 2
    assert time.stages == pytest.approx((weights + keys_and_values + head,))


def test_many_tokens_are_bound_by_products():
    gpu = Gpu("fast at reading", 1e6, 1e30, 1.0, (), 1.0, ALL)
    time = Partition(TINY, gpu, ranks=1).iteration([(5, 3), (0, 2)], sampled=0)
    linear = 2 * (10 * 4) * 5
    pairs = (3 * 5 + 3 + 2 + 1) + (2 + 1)  # each token with all before it and itself
    attention = 4 * 3 * 4 * pairs  # a product of queries and keys, one of weights and values
    assert time.stages == pytest.approx((linear + attention,))


def test_each_request_has_a_bound_of_its_own():
    """One request reads more than it multiplies, the other multiplies more than it reads."""
    gpu = Gpu("even", 1e6, 1.0, 1.0, (), 1.0, ALL)
    both = Partition(TINY, gpu, 1).iteration([(100, 1), (0, 50)], 0).total
    linear = 2 * (10 * 4) * 51
    assert both == pytest.approx(linear + max(32 * 101, 48 * 101) + max(32 * 50, 48 * 1275))


def test_a_small_read_is_slower_for_each_byte():
    steps = ((100.0, 0.9), (50.0, 0.5), (0.0, 0.25))
    gpu = Gpu("steps", 1e6, 1.0, 1e30, (), 1.0, steps)
    partition = Partition(TINY, gpu, 1)
    linear = 4 * (2 * 6 + 2 * 4) / 0.25  # 12 and 8 bytes in each of 4 layers
    rows = [(6, 1), (7, 1)]  # 56 and 64 bytes of keys and values in a layer, 120 together
    assert partition.iteration(rows, 0).total == pytest.approx(linear + 4 * 120 / 0.9)
    assert partition.iteration(rows[:1], 0).total == pytest.approx(linear + 4 * 56 / 0.5)


@pytest.mark.parametrize(("size", "share"), [(2e6, 0.6), (99e6, 0.75), (100e6, 0.9), (1e5, 0.3)])
def test_an_a100_reads_by_the_size_of_the_read(size: float, share: float):
    assert A100_40GB.read_rate(size) == pytest.approx(1555e9 * share)


def test_ranks_share_all_but_the_all_reduce():
    alone = Partition(TINY, UNIT, ranks=1).iteration([(0, 4)], 0).total
    shared = Partition(TINY, UNIT, ranks=4).iteration([(0, 4)], 0).total
    size = 2 * 2 * 4
    all_reduce = 7.0 + 6 * (1.0 + size / 4 / 2.0)
    assert shared == pytest.approx(alone / 4 + 2 * 4 * all_reduce)


def test_stages_share_the_layers_and_the_last_has_the_output_layer():
    whole = Partition(TINY, UNIT, ranks=1).iteration([(0, 4)], 1).total
    split = Partition(TINY, UNIT, ranks=1, stages=2).iteration([(0, 4)], 1)
    head = max(2 * 6 * 2, 2 * 6 * 2 * 1)
    assert split.stages == pytest.approx(((whole - head) / 2, (whole - head) / 2 + head))
    assert split.hand_over == pytest.approx(2 * 2 * 4, abs=1e-4)
    assert split.total == pytest.approx(whole + split.hand_over)


def test_the_quicker_ring_is_taken():
    small, large = (A100_40GB.all_reduce(size, 8) for size in (1e4, 1e8))
    assert small == pytest.approx(6.6e-6 + 14 * (0.6e-6 + 1e4 / 8 / 87.7e9))
    assert large == pytest.approx(8.4e-6 + 14 * (3.4e-6 + 1e8 / 8 / 195e9))


@pytest.mark.parametrize(("model", "billions"), [(GPT_13B, 13), (GPT_101B, 101), (GPT_175B, 175), (GPT_341B, 341)])
def test_models_have_the_parameters_of_their_names(model: Model, billions: int):
    assert round(model.params / 1e9) == billions


def test_slots_are_what_the_weights_leave():
    gpu = Gpu("small", memory=500.0, bandwidth=1.0, rate=1.0, rings=(), adapter=1.0, reads=ALL)
    weights, slot = 2 * (4 * 10 + 6 * 2), 2 * 4 * 4
    assert Partition(TINY, gpu, ranks=2).num_slots == (1000 - weights) // slot
