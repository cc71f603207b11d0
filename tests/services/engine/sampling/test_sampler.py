"""One token for each request by its own settings, in any batch."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from compiled_search import compiled_search
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.batch.request_state import RequestState
from services.engine.sampling.sampler import Sampler
from services.requests import SamplingParams

VOCAB, EOS = 50, 49
SAMPLER = Sampler(frozenset({EOS}), VOCAB)


@pytest.fixture(autouse=True, params=["compiled", "batched"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with both samplers."""
    monkeypatch.setattr(SAMPLER, "search", compiled_search() if request.param == "compiled" else None)


def row(id: str = "r", prompt: int = 3, output: tuple[int, ...] = (), **fields: Any) -> RequestState:
    """A request whose prompt is 1, 2, 3, ...; greedy by default."""
    sampling = SamplingParams(**{"max_new_tokens": 100, "temperature": 0.0, **fields})
    return RequestState(id, [*range(1, prompt + 1), *output], prompt, sampling)


def noise_free(*likely: int) -> torch.Tensor:
    """Logits [1, VOCAB] with these ids on top, in falling order."""
    logits = torch.full((1, VOCAB), -1.0)
    for rank, id in enumerate(likely):
        logits[0, id] = 10.0 - rank
    return logits


def token(logits: torch.Tensor, one: RequestState) -> int:
    return SAMPLER.draw(logits, [one]).output.result().tokens[one.id]


def test_temperature_zero_takes_the_likeliest() -> None:
    assert token(noise_free(7, 3), row()) == 7


def test_logit_bias_moves_the_choice() -> None:
    assert token(noise_free(7, 3), row(logit_bias={7: -2.0})) == 3
    assert token(noise_free(7, 3), row(logit_bias={20: 100.0})) == 20
    assert token(noise_free(7, 3), row(logit_bias={7: -100.0}, temperature=1.0)) == 3


def test_min_tokens_holds_back_every_end() -> None:
    logits = noise_free(EOS, 8, 7)
    assert token(logits, row()) == EOS
    assert token(logits, row(min_tokens=2)) == 8
    assert token(logits, row(min_tokens=2, stop_token_ids=(8, 10_000))) == 7
    assert token(logits, row(min_tokens=2, output=(5, 5))) == EOS
    assert token(logits, row(min_tokens=2, ignore_eos=True)) == EOS


def test_repetition_penalty_looks_at_prompt_and_output() -> None:
    logits = torch.full((1, VOCAB), -5.0)
    logits[0, [1, 30, 31]] = torch.tensor([4.0, 3.9, 3.0])
    assert token(logits, row(repetition_penalty=1.1)) == 30  # 1 is in the prompt: 4 / 1.1 = 3.64
    assert token(logits, row(repetition_penalty=1.1, output=(30,))) == 1
    assert token(logits, row(repetition_penalty=2.0, output=(30, 30))) == 31  # counted once: 1.95
    negative = torch.full((1, VOCAB), -5.0)
    negative[0, [1, 30]] = torch.tensor([-1.0, -1.5])
    assert token(negative, row(repetition_penalty=2.0)) == 30  # -1 * 2


def test_presence_and_frequency_look_at_the_output_alone() -> None:
    logits = torch.full((1, VOCAB), -5.0)
    logits[0, [1, 30]] = torch.tensor([4.0, 3.0])
    assert token(logits, row(presence_penalty=2.0)) == 1
    assert token(logits, row(presence_penalty=0.9, output=(1, 1, 1))) == 1
    assert token(logits, row(presence_penalty=1.1, output=(1, 1, 1))) == 30
    assert token(logits, row(frequency_penalty=0.4, output=(1, 1))) == 1
    assert token(logits, row(frequency_penalty=0.4, output=(1, 1, 1))) == 30
    assert token(logits, row(presence_penalty=-2.0, output=(30,))) == 30


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    one = row(logprobs=4, temperature=0.5, logit_bias={5: 100.0}, seed=1)
    result = SAMPLER.draw(logits, [one]).output.result()
    assert result.tokens == {"r": 5}
    total = math.log(sum(math.exp(x) for x in logits[0].tolist()))
    expected = sorted(((x - total, id) for id, x in enumerate(logits[0].tolist())), reverse=True)
    got = result.logprobs["r"]
    assert got.token == pytest.approx(logits[0, 5].item() - total, abs=1e-5)
    assert [id for id, _ in got.top] == [id for _, id in expected[:4]]
    assert [logprob for _, logprob in got.top] == pytest.approx([x for x, _ in expected[:4]], abs=1e-5)


def test_logprobs_only_where_asked() -> None:
    logits = noise_free(7).repeat(2, 1)
    result = SAMPLER.draw(logits, [row("a"), row("b", logprobs=0)]).output.result()
    assert set(result.logprobs) == {"b"}
    assert result.logprobs["b"].top == []


def test_logprobs_do_not_know_what_is_allowed() -> None:
    logits = noise_free(7, 3, 20)
    one, plain = row(allowed_token_ids=(20,), bad_words=((3,),), logprobs=2), row(logprobs=2)
    got, expected = (SAMPLER.draw(logits, [each]).output.result().logprobs["r"] for each in (one, plain))
    assert got.top == expected.top
    assert got.token == pytest.approx(expected.token - 2.0, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_allowed_is_left_the_request_fails_alone(temperature: float) -> None:
    logits = noise_free(7, 3).repeat(3, 1)
    logits[0, 4] = -math.inf
    none = row("a", allowed_token_ids=(4,), temperature=temperature)
    bad = row("b", allowed_token_ids=(7,), bad_words=((7,),), temperature=temperature)
    result = SAMPLER.draw(logits, [none, bad, row("c")]).output.result()
    assert set(result.failed) == {"a", "b"}
    assert "allowed_token_ids" in result.failed["a"]
    assert result.tokens == {"c": 7}


@settings(max_examples=30)
@given(st.data())
def test_no_output_has_a_bad_word(data: st.DataObject) -> None:
    """Nor a token that is not allowed, over whole outputs, at every temperature."""
    ids = st.integers(0, 5)
    words = tuple(data.draw(st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=5)))
    allowed = tuple(data.draw(st.lists(ids, max_size=5)))
    one = row(
        prompt=2,
        bad_words=words,
        allowed_token_ids=allowed,
        temperature=data.draw(st.sampled_from([0.0, 1.0])),
        seed=data.draw(st.integers(0, 9)),
    )
    sampler = Sampler(frozenset(), 6)
    logits = torch.randn(12, 1, 6, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 9))))
    for step in range(12):
        result = sampler.draw(logits[step], [one]).output.result()
        if result.failed:
            spoken = one.token_ids[one.num_prompt_tokens :]
            begun = {last for *start, last in words if spoken[len(spoken) - len(start) :] == start}
            assert begun >= set(allowed or range(6))
            break
        one.token_ids.append(result.tokens["r"])
    spoken = one.token_ids[one.num_prompt_tokens :]
    assert not allowed or set(spoken) <= set(allowed)
    for word in words:
        assert all(tuple(spoken[i : i + len(word)]) != word for i in range(len(spoken)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_undefined_logits_fail_their_request_alone(bad: float) -> None:
    logits = noise_free(7).repeat(3, 1)
    logits[1, 4] = bad
    result = SAMPLER.draw(logits, [row("a"), row("b", temperature=1.0), row("c", temperature=0.01)]).output.result()
    assert result.tokens == {"a": 7, "c": 7}
    assert "not finite" in result.failed["b"]


def test_nothing_left_to_choose_fails_its_request_alone() -> None:
    ends = tuple(range(VOCAB))
    rows = [row("a", min_tokens=1, stop_token_ids=ends), row("b", min_tokens=1, stop_token_ids=ends, temperature=1.0)]
    result = SAMPLER.draw(noise_free(7).repeat(3, 1), [*rows, row("c")]).output.result()
    assert set(result.failed) == {"a", "b"}
    assert result.tokens == {"c": 7}


@pytest.mark.parametrize(
    ("fields", "shares"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 2.0}, [0.325, 0.281, 0.230, 0.163]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.75}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"min_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),
        ({"logit_bias": {3: math.log(4.0)}}, [0.4 / 1.3, 0.3 / 1.3, 0.2 / 1.3, 0.4 / 1.3]),
    ],
)
def test_draws_have_the_distribution_asked_for(fields: dict[str, Any], shares: list[float]) -> None:
    """Chi-square over 1,500 draws, one seed each: below the 99.9% quantile for 3 degrees of freedom."""
    draws = 1500
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    sampler = Sampler(frozenset(), 4)
    rows = [row(str(seed), **{"temperature": 1.0, "seed": seed, **fields}) for seed in range(draws)]
    tokens = list(sampler.draw(logits.repeat(draws, 1), rows).output.result().tokens.values())
    counts = [tokens.count(id) for id in range(4)]
    assert all(count == 0 for count, share in zip(counts, shares, strict=True) if share == 0)
    expected = [share * draws for share in shares]
    assert sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True) if e) < 16.27


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.5}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.02}])
def test_draws_of_a_wide_vocabulary_have_the_distribution_asked_for(fields: dict[str, Any]) -> None:
    """Chi-square over 3,000 positions of one seed, ids in groups of at least 100 expected draws: below the 99.9%
    quantile for as many degrees of freedom (Wilson and Hilferty, 1931). Nothing is drawn that is dropped."""
    draws, vocab = 3000, 640
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(8)) * 2
    share = (logits.double() / fields.get("temperature", 1.0)).softmax(-1).sort(descending=True)
    likely, ids = share.values, share.indices.tolist()
    kept = likely >= max(likely[fields.get("top_k", vocab) - 1].item(), fields.get("min_p", 0.0) * likely[0].item())
    kept &= likely.cumsum(-1) - likely < fields.get("top_p", 1.0)
    expected = (likely * kept / likely[kept].sum() * draws).tolist()
    rows = [row(str(i), prompt=i + 1, **{"temperature": 1.0, "seed": 11, **fields}) for i in range(draws)]
    tokens = Sampler(frozenset(), vocab).draw(logits.repeat(draws, 1), rows).output.result().tokens.values()
    counts = Counter(tokens)
    assert all(kept[ids.index(id)] for id in counts)
    statistic, groups, seen, awaited = 0.0, 0, 0.0, 0.0
    for id, e in zip(ids, expected, strict=True):
        seen, awaited = seen + counts[id], awaited + e
        if awaited >= 100:
            statistic, groups = statistic + (seen - awaited) ** 2 / awaited, groups + 1
            seen, awaited = 0.0, 0.0
    statistic += (seen - awaited) ** 2 / awaited if awaited else 0.0
    freedom = groups if awaited else groups - 1
    assert freedom >= 5
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


def test_one_seed_draws_well_along_positions_and_choices() -> None:
    """The same chi-square where only the position, and only the choice, changes."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().repeat(1500, 1)
    sampler = Sampler(frozenset(), 4)
    for rows in (
        [row(str(i), prompt=i + 1, temperature=1.0, seed=5) for i in range(1500)],
        [row(str(i), choice=i, temperature=1.0, seed=5) for i in range(1500)],
    ):
        tokens = list(sampler.draw(logits, rows).output.result().tokens.values())
        expected = [share * 1500 for share in (0.4, 0.3, 0.2, 0.1)]
        assert sum((tokens.count(id) - e) ** 2 / e for id, e in enumerate(expected)) < 16.27


def test_the_raw_logits_are_left_alone() -> None:
    logits = noise_free(7, 3)
    before = logits.clone()
    SAMPLER.draw(logits, [row(temperature=1.0, top_k=2, logit_bias={7: -5.0}, repetition_penalty=1.5)]).output.result()
    SAMPLER.draw(
        logits, [row(logit_bias={7: -5.0, 3: 1.0}, allowed_token_ids=(3, 9), bad_words=((3,),), logprobs=1)]
    ).output.result()
    assert torch.equal(logits, before)
