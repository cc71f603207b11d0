"""A thinking budget from the request to the answer: what the gateway asks of the real sampler, on random logits, and
how its parsers read the tokens."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marked import full
from resumed_streams import KINDS, check_resumed_at_every_event
from stack import NAME
from tiny_text import make_folder

from gateway.answer.parsers.registry import make_parser
from gateway.answer.parts import PartKind
from gateway.answer.plan import AnswerKind
from gateway.executor import FairExecutor
from gateway.http.body import validate
from gateway.http.headers import Caller
from gateway.model import ServedModel
from gateway.schemas.chat import ChatRequest
from gateway.validation import ValidatedRequest, Validator
from services.engine.batch.grammars import GrammarCompiler, load_grammars
from services.engine.batch.request_state import RequestState
from services.engine.sampling.sampler import Sampler
from services.messages import EngineFigures
from services.models import ModelInfo
from services.requests import FEATURES
from services.settings.settings import Settings
from services.text import Tokenizer

THINK = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m.content }}<eos>{% endfor %}{{ tools }}{# <tool_call> #}<assistant>{{ start }}"
)
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}{{ tools }}"
    "{# functions. <|channel|>analysis #}<|start|>assistant{{ start }}"
)
FAMILIES = {  # template, special tokens, the beginning and the end of the reasoning
    "text": (THINK, [], "<think>\n", "\n</think>\n\n"),
    "special": (THINK, ["<think>", "</think>", "<tool_call>"], "<think>\n", "\n</think>\n\n"),
    "harmony": (
        HARMONY,
        ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"],
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
    ),
}
TOOL = {"name": "the", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}
REQUIRED = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}


class Family:
    """A tiny model of a family, which needs no weights."""

    def __init__(self, name: str, folder: Path) -> None:
        self.template, special, self.begin, self.end = FAMILIES[name]
        make_folder(folder)
        raw = json.loads((folder / "tokenizer.json").read_text())
        eos = raw["added_tokens"][0]
        config = json.loads((folder / "config.json").read_text())
        size = config["vocab_size"]
        raw["added_tokens"] += [eos | {"id": size + i, "content": text} for i, text in enumerate(special)]
        (folder / "tokenizer.json").write_text(json.dumps(raw))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": self.template, "eos_token": "<eos>"})
        )
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": size + len(special)}))
        self.tokenizer, self.info = Tokenizer.load(folder), ModelInfo.load(folder)
        self._compiler = GrammarCompiler(partial(load_grammars, folder, self.info), self.info.vocab_size)
        self._sampler = Sampler(self.info.eos_token_ids, self.info.vocab_size, grammars=self._compiler)
        figures = EngineFigures(NAME, 512, 512, 16, self.info.vocab_size, "echo", features=FEATURES)

        async def living() -> EngineFigures:
            return figures

        self.model = ServedModel(NAME, self.tokenizer, self.info, 1)
        self._validator = Validator("gateway", self.model, Settings(), FairExecutor(), living)
        self._figures = figures

    def asked(self, **fields: Any) -> ValidatedRequest:
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 120} | fields
        return self._validator._chat(validate(ChatRequest, body), self._figures, Caller("tenant"))

    def output(self, made: ValidatedRequest, crashes: set[int]) -> list[int]:
        """The sampled tokens. Where an engine crashes, another one goes on with the tokens so far."""
        (sequence,) = made.submission.sequences
        tokens = list(sequence.prompt)
        state: RequestState | None = None
        for position in range(sequence.sampling.max_new_tokens):
            if state is None or position in crashes:
                state = RequestState("0", list(tokens), len(sequence.prompt), sequence.sampling)
            noise = torch.Generator().manual_seed(position)
            sampled = self._sampler.draw(torch.randn(1, self.info.vocab_size, generator=noise), [state]).output.result()
            assert not sampled.failed
            token = sampled.tokens["0"]
            state.append(token)
            tokens.append(token)
            if token in self.info.eos_token_ids:
                break
        return tokens[len(sequence.prompt) :]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp(request.param))


@settings(max_examples=6, deadline=None)
@given(
    st.integers(0, 12),
    st.integers(0, 2**32),
    st.booleans(),
    st.booleans(),
    st.frozensets(st.integers(0, 60), max_size=4),
)
def test_the_reasoning_ends_after_its_budget(
    family: Family, budget: int, seed: int, required: bool, opened: bool, crashes: frozenset[int]
) -> None:
    eos = min(family.info.eos_token_ids)
    fields: dict[str, Any] = {"seed": seed, "thinking_token_budget": budget, "max_tokens": 60}
    fields["chat_template_kwargs"] = {"start": family.begin.rstrip("\n") if opened else ""}
    closing = family.tokenizer.encode(family.end)
    # the reasoning does not end by itself, and only a grammar ends the output
    unlikely = family.tokenizer.special_ids.intersection(closing) | ({eos} if not required else set())
    fields |= {"logit_bias": {str(id): -100 for id in unlikely}} | (REQUIRED if required else {})
    made = family.asked(**fields)
    tokens = family.output(made, set(crashes))
    assert family.output(made, set()) == tokens
    assert made.submission.sequences[0].sampling.thinking_token_budget
    if opened:
        late = next(i for i in range(len(tokens)) if tokens[i : i + len(closing)] == closing) - budget
        assert late == 0 or (required and 0 < late <= 3)  # a grammar has whole characters
    plan = made.plan
    if required and tokens[-1] == eos:
        parser = make_parser(plan.tool_parser, plan.reasoning_parser, plan.reasoning_open, True, plan.types)
        assert parser
        parts = [*parser.push(family.tokenizer.decode(tokens, plan.skip_special_tokens)), *parser.finish()]
        assert "the" in [part.name for part in parts if part.kind is PartKind.CALL]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("required", [True, *full([False])])
def test_engine_and_gateway_die_at_every_token(family: Family, required: bool, kind: AnswerKind) -> None:
    fields: dict[str, Any] = {"seed": 1, "thinking_token_budget": 9, "max_tokens": 60}
    fields["chat_template_kwargs"] = {"start": family.begin.rstrip("\n")}
    closing = family.tokenizer.special_ids.intersection(family.tokenizer.encode(family.end))
    fields |= {"logit_bias": {str(id): -100 for id in closing}} | (REQUIRED if required else {})
    made = family.asked(**fields)
    tokens = family.output(made, set())
    assert family.output(made, set(range(60))) == tokens
    said = tokens[:-1] if tokens[-1] in family.info.eos_token_ids else tokens
    assert check_resumed_at_every_event(family.model, made.plan, said, kind) > 5
