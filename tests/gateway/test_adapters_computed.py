"""Requests of several adapters over HTTP: the tokens of a real engine are those of transformers with the weights of the
adapter added to those of the model."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from stack import NAME, Stack
from tiny_models import make_tiny_model
from transformers import AutoModelForCausalLM
from waiting import wait_until

from load.random_adapter import write_adapter
from services.adapters.peft import LowRank, read
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.models.linears import load_linears
from services.settings.settings import Settings

NAMES = [NAME, "a", "b", "c", "d"]
PROMPTS = [[7, 9, 11, 300, 41], list(range(40, 75))]
LENGTH = 12


class Served(Stack):
    """A stack with a real engine that computes adapters."""

    def __init__(self, redis_url: str, folder: Path, settings: Settings) -> None:
        super().__init__(redis_url, f"computed-{secrets.token_hex(4)}", folder, settings)
        own = EngineSettings(
            "cpu", "float32", kv_blocks=200, threads=1, adapters=settings.files_folder, adapter_bytes=1
        )
        self.real = Engine.load(folder, own)
        self.figures = self.real.figures

    def _make_engine(self) -> Any:
        return self.real


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    linears = load_linears(folder, Settings().cache_dir)
    return {name: write_adapter(root / name, linears, seed, rank=2 + seed) for seed, name in enumerate(NAMES[1:])}


@pytest.fixture(scope="module")
def stack(
    redis_url: str, folder: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    modules = tuple(f"{name}={path}" for name, path in adapters.items())
    files = str(tmp_path_factory.mktemp("files"))
    with Served(redis_url, folder, Settings(enable_lora=True, lora_modules=modules, files_dir=files)) as stack:
        wait_until(lambda: httpx.get(f"{stack.url}/ready").is_success)
        yield stack


def expected(folder: Path, parts: dict[str, LowRank]) -> list[list[int]]:
    """The greedy tokens of transformers in float32, after each prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for name, part in parts.items():
        added = part.scale * torch.from_numpy(part.b) @ torch.from_numpy(part.a)
        model.get_submodule(name).weight.data += added
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=LENGTH, min_new_tokens=LENGTH, do_sample=False
        )
        found.append(made[0, len(prompt) :].tolist())
    return found


def test_each_request_gets_the_tokens_of_its_adapter(stack: Stack, folder: Path, adapters: dict[str, Path]) -> None:
    """More adapters than the engine keeps are in one batch, twice, so that some are read again."""
    body = {"temperature": 0, "max_tokens": LENGTH, "min_tokens": LENGTH, "return_token_ids": True}
    asked = [(name, number) for _ in range(2) for number in range(len(PROMPTS)) for name in NAMES]

    def tokens(of: tuple[str, int]) -> list[int]:
        name, number = of
        answer = httpx.post(
            f"{stack.url}/v1/completions", json=body | {"model": name, "prompt": PROMPTS[number]}, timeout=60
        ).json()
        assert answer["model"] == name
        return list(answer["choices"][0]["token_ids"])

    with ThreadPoolExecutor(len(asked)) as threads:
        got = list(threads.map(tokens, asked))
    linears = load_linears(folder, Settings().cache_dir)
    wanted = {name: expected(folder, read(path, linears)) for name, path in adapters.items()}
    wanted[NAME] = expected(folder, {})
    assert got == [wanted[name][number] for name, number in asked]
    assert len({tuple(wanted[name][1]) for name in NAMES}) == len(NAMES)
