"""The model of FasterTransformer on small traces that can be followed by hand."""

import pytest

from load.simulation.cost import TABLE_1, IterationTime
from load.simulation.faster_transformer import batch_seconds, largest_batch, serve
from load.trace import Request
from load.workloads import sized


class Script:
    """A cost of one second for each stage of each iteration; records what was computed."""

    def __init__(self, stages: int = 1) -> None:
        self.time, self.computed = IterationTime((1.0,) * stages), []

    def iteration(self, rows, sampled):
        self.computed.append(list(rows))
        return self.time


def test_the_first_iteration_takes_the_shortest_input_and_all_run_to_the_last_end():
    cost = Script()
    seconds = batch_seconds([sized(3, 2), sized(5, 1)], cost, microbatch_size=2)
    # 3 tokens of each; then position 3 (the first's second token, the second's fourth input); then position 4
    assert cost.computed == [[(0, 3)] * 2, [(3, 1)] * 2, [(4, 1)] * 2]
    assert seconds == 3.0


def test_equal_requests_take_as_many_iterations_as_tokens():
    assert batch_seconds([sized(32, 4)] * 8, Script(), 8) == 4.0


def test_a_whole_batch_as_one_microbatch_leaves_stages_idle():
    assert batch_seconds([sized(2, 3)] * 2, Script(stages=2), 2) == 6.0


def test_microbatches_follow_each_other_through_the_stages():
    # A1 B1 A2 B2 A3 B3 without a pause, and B3's second stage
    assert batch_seconds([sized(2, 3)] * 2, Script(stages=2), 1) == 7.0


def test_more_microbatches_than_stages_wait_for_the_stage():
    assert batch_seconds([sized(2, 2)] * 3, Script(stages=2), 1) == 7.0


def test_a_batch_takes_all_waiting_requests_and_returns_them_at_its_end():
    trace = [Request([5] * 2, tokens, at=at) for tokens, at in ((3, 0.0), (1, 1.0), (4, 2.0), (1, 30.0))]
    served = serve(trace, Script(), max_batch_size=8, microbatch_size=8)
    assert [one.times for one in served] == [[3.0] * 3, [7.0], [7.0] * 4, [31.0]]


def test_a_full_batch_leaves_the_rest_waiting():
    served = serve([sized(2, 1)] * 3, Script(), max_batch_size=2, microbatch_size=2)
    assert [one.times for one in served] == [[1.0], [1.0], [2.0]]


@pytest.mark.parametrize(("model", "too_many"), [("13B", 8), ("101B", 16)])
def test_memory_bounds_the_batch_where_the_paper_says(model: str, too_many: int):
    """Section 6.1: batches of 8 on 13B and of 16 on 101B did not fit; figure 9 has half of each."""
    assert too_many // 2 <= largest_batch(TABLE_1[model]) < too_many
