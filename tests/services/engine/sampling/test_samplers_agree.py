"""All samplers give the tokens of the plain definition, in any batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from compiled_search import check_weights, compiled_search
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_requests import MIX, mixed
from plain_sampler import plain_token
from torch._subclasses import FakeTensorMode

from services.engine.batch.request_state import RequestState
from services.engine.sampling import batched_sampler, cpu_sampler
from services.engine.sampling.output import SampledTokens
from services.engine.sampling.sampler import Sampler
from services.requests import SamplingParams

VOCABULARIES = (1, 7, 50, 97, 640, 4096)  # one id, primes, whole chunks, more than the chunks that are looked at first


def sample_with_kernels(logits: torch.Tensor, rows: Sequence[RequestState]) -> SampledTokens:
    return cpu_sampler.sample(logits, rows, compiled_search())


SampleFunction = Callable[[torch.Tensor, Sequence[RequestState]], SampledTokens]
SAMPLERS: list[SampleFunction] = [
    sample_with_kernels,
    batched_sampler.sample,
]


def words(vocab: int) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    """Bad words; of few tokens, so that outputs end with their beginnings."""
    ids = st.integers(0, min(vocab, 3) - 1)
    return st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple)


@st.composite
def requests(draw: st.DrawFn, vocab: int) -> RequestState:
    """A request of any settings and history."""
    ids = st.integers(0, vocab - 1)
    often = st.sampled_from
    sampling = SamplingParams(
        max_new_tokens=100,
        temperature=draw(often([0.0, 1e-30, 0.01, 0.7, 1.0, 1.0, 1.5, 4.0])),
        top_p=draw(often([0.0, 0.1, 0.5, 0.95, 0.999, 1.0, 1.0])),
        top_k=draw(often([0, 0, 1, 2, 9, 50, 64, 65, 300, vocab])),
        min_p=draw(often([0.0, 0.0, 1e-9, 0.02, 0.3, 1.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
        choice=draw(st.integers(0, 3)),
        presence_penalty=draw(often([0.0, 0.0, 0.3, -2.0])),
        frequency_penalty=draw(often([0.0, 0.0, 0.1, 1.7])),
        repetition_penalty=draw(often([1.0, 1.0, 1.3, 0.7, 1e-38])),
        logit_bias=draw(st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=3))
        if draw(st.booleans())
        else {},
        min_tokens=draw(often([0, 0, 2])),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, vocab + 5), max_size=3))),
        bad_words=draw(words(vocab)),
        allowed_token_ids=tuple(draw(st.lists(ids, max_size=10))) if draw(st.booleans()) else (),
    )
    prompt = draw(st.lists(ids, min_size=1, max_size=20))
    output = draw(st.lists(ids, max_size=6)) + draw(st.lists(st.integers(0, min(vocab, 3) - 1), max_size=3))
    return RequestState(str(draw(st.uuids())), prompt + output, len(prompt), sampling)


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, list[RequestState]]:
    """Logits like a model's, flat ones, ones with many equal values, with -inf."""
    vocab = draw(st.sampled_from(VOCABULARIES))
    rows = draw(st.lists(requests(vocab), min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    logits = torch.randn(len(rows), vocab, generator=generator)
    logits *= draw(st.sampled_from([0.0, 0.1, 1.0, 3.0, 20.0]))
    if draw(st.booleans()):
        logits = logits.round()
    if draw(st.booleans()):
        logits[:, ::3] = -torch.inf
        logits[:, 0] = 1.0
    return logits.to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))), rows


@settings(max_examples=150)
@given(batches())
def test_tokens_are_those_of_the_plain_definition(batch: tuple[torch.Tensor, list[RequestState]]) -> None:
    logits, rows = batch
    eos, vocab = frozenset({0}), logits.shape[1]
    sampler = Sampler(eos, vocab)
    expected = [plain_token(one, row, eos) for one, row in zip(logits, rows, strict=True)]
    for row in rows:
        sampler.prepare(row)
    for sample in SAMPLERS:
        sampled = sample(logits, rows)
        assert sampled.sound == [True] * len(rows)
        possible = zip(sampled.tokens, sampled.possible, strict=True)
        assert [token if ok else None for token, ok in possible] == expected


@pytest.mark.parametrize("way", SAMPLERS)
def test_alone_and_among_others_all_is_the_same(
    way: SampleFunction,
) -> None:
    """Tokens and log probabilities, bit for bit, in any order."""
    logits = torch.randn(40, 3000, generator=torch.Generator().manual_seed(2)) * 3
    rows = mixed(40, 3000)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3)).tolist()
    together = way(logits[order], [rows[i] for i in order])
    for place, i in enumerate(order):
        alone = way(logits[i : i + 1], [rows[i]])
        assert together.tokens[place] == alone.tokens[0]
        assert together.logprobs.get(place) == alone.logprobs.get(0)


def test_parts_of_a_batch_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(40, 3000, generator=torch.Generator().manual_seed(2)) * 3
    whole = batched_sampler.sample(logits, mixed(40, 3000))
    monkeypatch.setattr(batched_sampler, "AT_ONCE", 7000)
    assert batched_sampler.sample(logits, mixed(40, 3000)) == whole


def test_what_is_kept_from_the_last_iteration_makes_no_difference() -> None:
    """For the same requests, then some of them, then all again, among them some whose settings change logits."""
    logits = torch.randn(40, 3000, generator=torch.Generator().manual_seed(2)) * 3
    sampler, rows = batched_sampler.BatchedSampler(), mixed(40, 3000)
    plain = [row for row in rows if row.unchanged]
    assert any(row.sampling.temperature for row in plain)
    for chosen in (plain, plain, plain[3:], plain, rows, rows, plain[::-1], plain, plain):
        _, sampled = sampler.start(logits[: len(chosen)], chosen)
        assert sampled.result() == batched_sampler.sample(logits[: len(chosen)], chosen)
        for row in plain:
            row.append(7)


def test_the_batched_sampler_waits_for_nothing_before_its_result() -> None:
    """A fake tensor has no values: an operation that would wait for a device to read one raises."""
    rows = mixed(16, 3000)
    batch = batched_sampler.Batch.from_states(rows, 3000)
    sent = batch.send(3000, torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        told = batched_sampler.launch(torch.empty(16, 3000), batch, sent)
        with pytest.raises(Exception, match="_local_scalar_dense"):
            told.max().item()
    asking, likeliest = len(batch.asking), batch.most_logprobs
    assert told.shape == (16 + 8 + len(batch.changed) + asking * (1 + 2 * likeliest),)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_the_compiled_search_weighs_by_the_definition(vocab: int) -> None:
    check_weights(compiled_search(), vocab)


def test_log_probabilities_of_both_samplers_agree() -> None:
    logits = torch.randn(16, 3000, generator=torch.Generator().manual_seed(2)) * 3
    one, other = (way(logits, mixed(16, 3000)).logprobs for way in SAMPLERS)
    assert set(one) == set(other) == {i for i in range(16) if "logprobs" in MIX[i % len(MIX)]}
    for i in one:
        assert one[i].token == pytest.approx(other[i].token, abs=1e-5)
        assert [id for id, _ in one[i].top] == [id for id, _ in other[i].top]
        assert [value for _, value in one[i].top] == pytest.approx([value for _, value in other[i].top], abs=1e-5)


@pytest.mark.parametrize("way", SAMPLERS)
@pytest.mark.parametrize("lead", [8.01, 9.0, 12.0])
def test_tokens_far_from_the_likeliest_win_by_their_noise(lead: float, way: SampleFunction) -> None:
    """One id is ahead of 20,000 others, each of which is unlikely and all of which are not."""
    logits = torch.zeros(100, 20_000)
    logits[:, 7] = lead
    rows = [RequestState(str(i), list(range(i + 1)), 1, SamplingParams(200, seed=3)) for i in range(100)]
    expected = [plain_token(one, row, frozenset()) for one, row in zip(logits, rows, strict=True)]
    assert way(logits, rows).tokens == expected
    assert {7} < set(expected)
