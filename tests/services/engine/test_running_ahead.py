"""Iterations that are launched before the result of the one before is read: tokens, failures, blocks and epochs.

A CPU stands for a device here: the sampler of devices leaves its results where they are until they are asked for.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from letters import letters
from mixed_requests import EOS, MIX, WITHOUT_GRAMMARS
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model

from services.engine.engine import Engine
from services.engine.sampling.sampler import Sampler
from services.engine.settings import EngineSettings
from services.messages import Claim, End, Iteration, Logprobs, NewRequest
from services.requests import FinishReason, SamplingParams
from services.scheduling import Knobs, Scheduler
from services.started import Started

WITHOUT_BUDGETS = [kind for kind in WITHOUT_GRAMMARS if "thinking_token_budget" not in kind]
VOCAB, NAN = 201, 190
SETTINGS = EngineSettings("cpu", "float32", block_size=4, kv_blocks=200, threads=1)
KNOBS = (
    Knobs(16, lookahead=1),
    Knobs(16, lookahead=1, prefix_caching=True, token_budget=24),
    Knobs(5, lookahead=1, prefix_caching=True, admission="on_demand", token_budget=9),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in which a token's embedding is NaN."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), "llama", VOCAB, with_tokenizer=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][NAN] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def load(folder: Path, **changes: Any) -> Engine:
    engine = Engine.load(folder, replace(SETTINGS, **changes))
    engine.sampler = Sampler(EOS, VOCAB, None, letters(VOCAB))  # of devices
    return engine


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load(folder)


@dataclass
class Served:
    """What became of a request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    end: End | None = None


class Owner:
    """A scheduler that sends an engine as many iterations as it may before it reads a result. `drawn` counts the
    iterations that took tokens from where they were sampled."""

    def __init__(self, engine: Engine, claims: Sequence[Claim], knobs: Knobs, blocks: int) -> None:
        self.engine, self.served = engine, {claim.id: Served() for claim in claims}
        engine.reset("e")
        figures = replace(engine.figures, num_blocks=blocks)
        self.scheduler = Scheduler(epoch="e", figures=figures, knobs=knobs, eos_token_ids=EOS)
        self.sent = deque[tuple[Iteration, Started[Any]]]()
        self.drawn = 0

    def send(self) -> None:
        while iteration := self.scheduler.select():
            self.sent.append((iteration, self.engine.start(iteration)))
            batch = self.engine._running[-1].batch if self.engine._running else None
            self.drawn += bool(batch and batch.drawn)

    def read(self) -> bool:
        """Whether there was a result to read."""
        if self.sent:
            self.scheduler.update(self.sent.popleft()[1].result())
        for commit in self.scheduler.take_commits():
            served = self.served[commit.id]
            served.tokens += commit.tokens
            served.logprobs += commit.logprobs or []
            served.end = commit.end
        return bool(self.sent)

    def serve(self, claims: Sequence[Claim], draw: random.Random | None = None) -> None:
        """To the end of all. With `draw`, they come one after the other and some are cancelled."""
        waiting = deque(claims)
        while True:
            while waiting and (draw is None or draw.random() < 0.4):
                self.scheduler.add([waiting.popleft()])
            self.send()
            if not self.read() and not waiting and not self.scheduler.held():
                return
            if draw and draw.random() < 0.05:
                self.scheduler.cancel([draw.choice(claims).id])


def draw_claims(kinds: Sequence[dict[str, Any]], count: int, draw: random.Random) -> list[Claim]:
    """Requests that end by length, EOS or a stop, and one whose logits are not finite."""
    claims = []
    for i in range(count):
        prompt = [draw.randrange(NAN) for _ in range(draw.randint(1, 25))]
        if i == 3:
            prompt.append(NAN)
        told = {"max_new_tokens": draw.randint(1, 14), "seed": i * 2**55, "stop_token_ids": tuple(range(0, 190, 9))}
        if i % 2:
            told |= {"stop_token_ids": (), "ignore_eos": True}
        if i % 3 == 0:
            told |= {"min_tokens": draw.randint(0, 6)}
        if i % 6 == 5:
            told |= {"prompt_logprobs": 2, "logprobs": 1}
        claims.append(Claim(f"r{i}/0", float(i), prompt, [], SamplingParams(**{**told, **kinds[i % len(kinds)]})))
    return claims


def outcomes(engine: Engine, claims: Sequence[Claim], knobs: Knobs, blocks: int = 200) -> dict[str, Served]:
    owner = Owner(engine, claims, knobs, blocks)
    owner.serve(claims)
    return owner.served


def check(
    engine: Engine, kinds: Sequence[dict[str, Any]], knobs: Knobs, seed: int, blocks: int, bits: bool = True
) -> int:
    """Compares with each request alone, and nothing in flight before its results are read. Returns how many iterations
    ran ahead. Without `bits` the batch may change them, so log probabilities are not compared."""
    draw = random.Random(seed)
    claims = draw_claims(kinds, 14, draw)
    alone: dict[str, Served] = {}
    for claim in claims:
        alone |= outcomes(engine, [claim], Knobs(1))
    owner = Owner(engine, claims, knobs, blocks)
    owner.serve(claims, draw)
    for id, served in owner.served.items():
        expected = alone[id]
        if not bits:
            expected.logprobs = served.logprobs
        assert served.end
        if served.end.reason == FinishReason.CANCELLED:
            count = len(served.tokens)
            assert (served.tokens, served.logprobs) == (expected.tokens[:count], expected.logprobs[:count])
        else:
            assert expected.end
            same = replace(served.end, at=expected.end.at, cached=expected.end.cached)
            assert (served.tokens, served.logprobs, same) == (expected.tokens, expected.logprobs, expected.end)
    assert alone["r3/0"].end
    assert "not finite" in (alone["r3/0"].end.error or "")
    return owner.drawn


@settings(max_examples=12, deadline=None)
@given(knobs=st.sampled_from(KNOBS), seed=st.integers(0, 2**32), blocks=st.sampled_from([12, 30, 200]))
def test_tokens_and_log_probabilities_are_the_same(engine: Engine, knobs: Knobs, seed: int, blocks: int) -> None:
    """Beside requests that wait for their tokens: with penalties, bad words or a budget of thinking."""
    check(engine, WITHOUT_GRAMMARS, knobs, seed, blocks)


def test_most_iterations_run_ahead(engine: Engine) -> None:
    """Of requests whose settings do not depend on which tokens they have."""
    ahead = [{}, {"temperature": 0.0, "logprobs": 3}, {"top_k": 9, "top_p": 0.9}, {"logit_bias": {3: 2.0}}]
    assert check(engine, ahead, KNOBS[0], 1, 200) > 10


def test_grammars_wait_for_their_tokens(engine: Engine) -> None:
    pytest.importorskip("llguidance")
    check(engine, [kind for kind in MIX if "grammar" in kind], KNOBS[0], 2, 200)


def test_transformers_layers_run_ahead_too(folder: Path) -> None:
    assert check(load(folder, fast_path=False), [{}, {"temperature": 0.0}], KNOBS[2], 3, 30, bits=False) > 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tokens_and_log_probabilities_are_the_same_on_cuda(folder: Path) -> None:
    engine = load(folder, device="cuda", dtype="bfloat16")
    for seed, knobs in enumerate((KNOBS[0], KNOBS[2])):
        assert check(engine, [{}, {"temperature": 0.0, "logprobs": 3}, {"top_k": 9, "top_p": 0.9}], knobs, seed, 200)
        check(engine, WITHOUT_BUDGETS, knobs, seed, 12)


def first(tokens: Sequence[int], id: str = "a/0", block: int = 0, **told: Any) -> Iteration:
    """The prompt of a request that is alone."""
    sampling = SamplingParams(**{"max_new_tokens": 9, "temperature": 0.0, **told})
    new = [NewRequest(id, list(tokens), len(tokens), sampling)]
    return Iteration("e", 1, {id: len(tokens)}, new, {id: [block, block + 1]})


def test_nothing_is_read_before_it_is_asked_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []

    def fetch(tensor: torch.Tensor) -> Started[Any]:
        def result() -> Any:
            held.append(True)
            return tensor.numpy()

        return Started(lambda: bool(held), result)

    monkeypatch.setattr("services.engine.sampling.batched_sampler.fetch", fetch)
    engine.reset("e")
    one = engine.start(first([5, 6, 7]))
    two = engine.start(Iteration("e", 2, {"a/0": 1}))
    assert (held, one.done(), two.done()) == ([], False, False)
    assert two.result().step == 2  # which reads the first one, too
    assert len(held) == 2
    assert one.done()
    assert one.result().tokens.keys() == two.result().tokens.keys() == {"a/0"}


def test_only_one_iteration_is_ahead(engine: Engine) -> None:
    engine.reset("e")
    started = [engine.start(first([5, 6, 7]))]
    started += [engine.start(Iteration("e", step, {"a/0": 1})) for step in range(2, 5)]
    assert len(engine._running) == 2
    assert [one.result().step for one in started] == [1, 2, 3, 4]


def test_a_new_owner_waits_for_the_iterations_of_the_last_one(engine: Engine) -> None:
    engine.reset("e")
    engine.start(first([5, 6, 7]))
    engine.start(Iteration("e", 2, {"a/0": 1}))
    engine.reset("e")
    assert not engine._running
    assert engine.run(first([5, 6, 7])).tokens == engine.run(replace(first([5, 6, 7]), released=["a/0"])).tokens


class Fault(Exception):
    pass


def test_a_fault_of_a_device_is_raised_late_by_all_that_follows(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token of the iteration, nor of any after it, comes out."""

    def broken(tensor: torch.Tensor) -> Started[Any]:
        def result() -> Any:
            raise Fault

        return Started(lambda: True, result)

    engine.reset("e")
    with monkeypatch.context() as patched:
        one = engine.start(first([5, 6, 7]))
        patched.setattr("services.engine.sampling.batched_sampler.fetch", broken)
        two = engine.start(Iteration("e", 2, {"a/0": 1}))
        assert one.result().tokens
        for again in (two.result, lambda: engine.start(Iteration("e", 4, {})).result(), lambda: engine.reset("f")):
            with pytest.raises(Fault):
                again()
    engine._running.clear()  # as its process would end


def test_blocks_that_a_released_request_may_have_spoilt_are_erased(folder: Path) -> None:
    """Its failure is found after another request has got its blocks."""
    engine = load(folder)
    engine.reset("e")
    expected = engine.run(first([5, 6, 7], "b/0", 7)).tokens
    engine.reset("e")
    spoilt = engine.start(first([5, NAN, 6]))
    then = engine.start(replace(first([5, 6, 7], "b/0"), released=["a/0"], step=2))
    assert "not finite" in spoilt.result().failed["a/0"]
    assert then.result().tokens == expected


def test_a_request_that_fails_is_left_out_of_the_iteration_ahead(engine: Engine) -> None:
    engine.reset("e")
    both = first([5, 6, 7], "b/0", 4)
    bad = first([5, NAN, 6])
    both = replace(both, scheduled=both.scheduled | bad.scheduled, new=[*both.new, *bad.new])
    one = engine.start(replace(both, new_blocks=both.new_blocks | bad.new_blocks))
    two = engine.start(Iteration("e", 2, {"b/0": 1, "a/0": 1}))
    assert one.result().failed.keys() == {"a/0"}
    assert two.result().tokens.keys() == {"b/0"}
    assert not two.result().failed


def test_a_block_is_named_after_its_tokens_are_read(folder: Path) -> None:
    """The scheduler names blocks of iterations whose results it has."""
    engine = load(folder)
    knobs = Knobs(8, lookahead=1, prefix_caching=True)
    claims = [Claim("a/0", 0.0, [5, 6, 7], [], SamplingParams(30, temperature=0.0, ignore_eos=True))]
    owner = Owner(engine, claims, knobs, 200)
    owner.scheduler.add(claims)
    most = 0
    while True:
        owner.send()
        named = len(engine.block_names)
        known = 3 + len(owner.served["a/0"].tokens)
        assert named * SETTINGS.block_size <= known
        most = max(most, named)
        if not owner.read():
            break
    assert most > 5


def test_a_deadly_token_kills_when_it_is_known(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is sampled, and then computed ahead; its own iteration gives it out, as without running ahead."""
    checked: list[set[int]] = []

    def told(id: int, tokens: Any) -> None:
        checked.append({int(token) for token in tokens})

    monkeypatch.setattr("services.engine.engine.check_deadly", told)
    engine.reset("e")
    one = engine.start(first([5, 6, 7]))
    two = engine.start(Iteration("e", 2, {"a/0": 1}))
    (token,) = one.result().tokens.values()
    assert not any(token in tokens for tokens in checked)
    two.result()
    assert token in checked[-1]
