"""Requests with grammars: those that fail end alone, tokens after the end are free, and a mask does not depend on when
it is computed."""

from __future__ import annotations

from itertools import count
from threading import Event

import numpy as np
import pytest
import torch
from compiled_search import compiled_search
from letters import EOS_ID, letters

from services.engine.batch import grammars as grammars_module
from services.engine.batch.grammars import GrammarCompiler, OutputGrammar, allows
from services.engine.batch.request_state import RequestState
from services.engine.sampling import batched_sampler
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.search import CompiledSearch
from services.errors import ModelError
from services.grammar import Grammars, Matcher
from services.requests import NO_TOKEN_LEFT, SamplingParams

VOCAB = 60
EOS = frozenset({EOS_ID})


def row(id: str, grammar: str, output: list[int], **settings: object) -> RequestState:
    sampling = SamplingParams(9, temperature=0.0, grammar=grammar, **settings)  # type: ignore[arg-type]
    return RequestState(id, [1, 2, *output], 2, sampling)


def flat_logits(rows: int) -> torch.Tensor:
    """The highest id is the likeliest."""
    return torch.arange(VOCAB, dtype=torch.float32).repeat(rows, 1)


@pytest.mark.parametrize("search", [None, compiled_search()], ids=["batched", "compiled"])
def test_a_grammar_that_fails_ends_its_request_alone(search: CompiledSearch | None) -> None:
    rows = [
        row("good", "start: /[a-d]{3}/", [0]),
        row("syntax", "start: (", []),
        row("unsatisfiable", "start: start", []),
        row("token", "start: /[a-d]{3}/", [25]),
        row("free", "", [3]),
        row("nothing left", "start: /[a-d]{3}/", [0], allowed_token_ids=(20,)),
        row("min_tokens", 'start: "a"', [0], min_tokens=5),
    ]
    output = Sampler(EOS, VOCAB, search, letters(VOCAB)).draw(flat_logits(len(rows)), rows).output.result()
    assert output.tokens == {"good": 29, "free": VOCAB - 1}  # dd
    assert output.failed.keys() == {"syntax", "unsatisfiable", "token", "nothing left", "min_tokens"}
    assert output.failed["nothing left"] == output.failed["min_tokens"] == NO_TOKEN_LEFT
    for id in ("syntax", "unsatisfiable", "token"):
        assert output.failed[id].startswith("the grammar cannot be followed: ")
        assert "<" not in output.failed[id]


def test_tokens_drawn_ahead_past_the_end_are_free() -> None:
    sampler = Sampler(EOS, VOCAB, None, letters(VOCAB))
    one = row("one", 'start: "ab"', [])
    for expected in (0, 1, EOS_ID, VOCAB - 1, VOCAB - 1):
        output = sampler.draw(flat_logits(1), [one]).output.result()
        assert output.tokens == {"one": expected}
        one.token_ids.append(expected)


def test_without_a_tokenizer_grammars_fail_alone() -> None:
    def load() -> Grammars:
        raise ModelError("it has no tokenizer.json")

    sampler = Sampler(EOS, VOCAB, None, GrammarCompiler(load, VOCAB))
    rows = [row("with", 'start: "a"', []), row("without", "", [])]
    output = sampler.draw(flat_logits(2), rows).output.result()
    assert output.tokens == {"without": VOCAB - 1}
    assert "no tokenizer.json" in output.failed["with"]


def test_a_row_made_again_has_the_same_mask() -> None:
    """`kept` computes a mask after every token, `again` none before the last."""
    grammar = 'start: "a" ("bb" | /[c-f]{2,5}/ "aaaa")* /y+/'
    generator = np.random.default_rng(5)
    for _ in range(5):
        kept = row("kept", grammar, [])
        sampler = Sampler(EOS, VOCAB, None, letters(VOCAB))
        for _ in range(12):
            sampler.prepare(kept)
            assert kept.mask is not None
            again = row("again", grammar, kept.token_ids[kept.num_prompt_tokens :])
            sampler.prepare(again)
            assert again.mask is not None
            assert again.mask.tolist() == kept.mask.tolist()
            bits = np.unpackbits(kept.mask.view(np.uint8), count=VOCAB, bitorder="little")
            kept.token_ids.append(int(generator.choice(bits.nonzero()[0])))
            if kept.token_ids[-1] == EOS_ID:
                break


def test_the_batched_sampler_combines_masks_and_allowed_tokens() -> None:
    rows = [row("both", "start: /[a-d]{3}/", [0], allowed_token_ids=(2, 28, 50)), row("mask", "start: /[ab]/", [])]
    sampler = Sampler(EOS, VOCAB, None, letters(VOCAB))
    for one in rows:
        sampler.prepare(one)
    assert batched_sampler.sample(flat_logits(2), rows).tokens == [28, 1]


def test_masks_that_take_too_much_cpu_time_end_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token of `slow` takes a tenth of a second more than it may."""
    sampler = Sampler(EOS, VOCAB, None, letters(VOCAB))
    rows = [row("slow", "start: /a*/", []), row("other", "start: /b*/", []), row("free", "", [3])]
    for one in rows[:2]:
        sampler.begin(one)
    spend = OutputGrammar._spend
    monkeypatch.setattr(
        OutputGrammar,
        "_spend",
        lambda self, _, tokens: spend(
            self, grammars_module.SECONDS_PER_TOKEN + (0.1 if self is rows[0].grammar else 0), tokens
        ),
    )
    for _ in range(2):
        output = sampler.draw(flat_logits(3), rows).output.result()
        assert not output.failed
        for one in rows:
            one.token_ids.append(output.tokens[one.id])
    output = sampler.draw(flat_logits(3), rows).output.result()
    assert output.tokens.keys() == {"other", "free"}
    assert "0.30 s of CPU time" in output.failed["slow"]


def test_short_masks_empty_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(EOS, VOCAB, None, letters(VOCAB))
    one = row("one", "start: /a*/", [])
    sampler.begin(one)
    assert one.grammar
    for _ in range(100):
        one.grammar._spend(0.2, 1)
        for _ in range(40):
            one.grammar._spend(0.0, 1)
    assert one.grammar._seconds == pytest.approx(0.0, abs=1e-9)


def test_masks_of_a_draft_cost_its_request_no_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one = row("one", "start: /[ab]*/", [])
    Sampler(EOS, VOCAB, None, letters(VOCAB)).begin(one)
    grammar = one.grammar
    assert isinstance(grammar, OutputGrammar)
    grammar.advance(one.token_ids)
    a, b, *_ = (letter for letter in range(VOCAB) if letter not in EOS and allows(grammar.mask, letter))
    clock = count(step=1.0)
    with monkeypatch.context() as slow:
        slow.setattr(grammars_module.time, "thread_time", lambda: next(clock))  # a second between two readings
        for _ in range(50):
            assert len(grammar.masks_after([a, b] * 8)) == 16
    grammar.advance([*one.token_ids, b])  # the draft was rejected
    assert grammar.error is None
    assert grammar._seconds < grammars_module.LARGEST


def test_a_grammar_that_compiles_for_long_does_not_delay_another(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, go_on = GrammarCompiler(lambda: letters(VOCAB)._grammars, VOCAB), Event()
    original = Grammars.matcher

    def matcher(self: Grammars, grammar: str) -> Matcher:
        if "slow" in grammar:
            assert go_on.wait(60)
        return original(self, grammar)

    monkeypatch.setattr(Grammars, "matcher", matcher)
    slow = compiler.begin('start: "slow"', [1], 1)
    quick = compiler.begin('start: "q"', [1], 1)
    quick.advance([1])
    assert quick.mask is not None
    go_on.set()
    slow.advance([1])
    assert slow.mask is not None
