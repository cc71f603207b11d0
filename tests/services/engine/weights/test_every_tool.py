"""Checkpoints that other people's tools write, compared with what the tools compute with them: `make tools`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from against_tool import PROMPT, Compared, compare
from family_check import STOCK
from folders import quantize_folder
from routing import Flip, Routed, flips, forward
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model
from tool_cases import CASES, SCRIPTS, Case, Tool
from tools_table import DOCUMENT, table_written
from written import WRITERS

from services.engine.engine import Engine
from services.engine.weights.folder import QuantizedCheckpoint, open_folder
from services.errors import ModelError
from tests.clients.environments import Environments

FOLDER = Path(__file__).parents[4] / ".tools"
TIMEOUT = 3600  # seconds, for one tool
_HEADS = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
MODELS = {
    "llama": ("llama", {**_HEADS, "intermediate_size": 256}),
    "qwen3": ("qwen3", {**_HEADS, "intermediate_size": 256}),
    "qwen3_tied": ("qwen3", {**_HEADS, "intermediate_size": 256, "tie_word_embeddings": True}),
    "qwen3_moe": ("qwen3_moe", {**_HEADS, "intermediate_size": 256, "moe_intermediate_size": 128}),
    "mixtral": ("mixtral", {**_HEADS, "intermediate_size": 128}),
}


@pytest.fixture(scope="module")
def found() -> Iterator[dict[Case, Compared | str]]:
    """What was compared. With ORCA_TOOLS set, docs/models.md gets its table from it."""
    results: dict[Case, Compared | str] = {}
    yield results
    if os.environ.get("ORCA_TOOLS") and results.keys() == set(CASES):
        DOCUMENT.write_text(table_written(DOCUMENT.read_text(), results))


@pytest.fixture(scope="module")
def models() -> Path:
    folder = FOLDER / "models"
    for name, (family, config) in MODELS.items():
        if not (folder / name).exists():
            make_tiny_model(folder / name, family, **config)
    return folder


@pytest.fixture(scope="module")
def checkpoints(models: Path, request: pytest.FixtureRequest) -> dict[Case, Path]:
    """What the tools write for the cases that were selected. They are kept in `.tools`, and written again when tool,
    script or options have changed."""
    selected = {item.callspec.params["case"] for item in request.session.items if item.name.startswith("test_each[")}
    places = {case: FOLDER / _key(case) for case in CASES if case in selected}
    for tool in dict.fromkeys(case.tool for case in places):
        if missing := [case for case in places if case.tool == tool and not (places[case] / "written.json").exists()]:
            _write(tool, {case: places[case] for case in missing}, models)
    return places


def _write(tool: Tool, places: dict[Case, Path], models: Path) -> None:
    command = Environments(FOLDER).command(tool, SCRIPTS / tool.script)
    cases = [{"name": place.name, "model": case.model, "options": case.options} for case, place in places.items()]
    told = FOLDER / f"{tool.name}.json"
    told.write_text(json.dumps({"models": str(models), "folder": str(FOLDER), "prompt": PROMPT, "cases": cases}))
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    environment["GPTQMODEL_CPU_WORKERS"] = "2"  # it needs two, and by itself takes half of the cores
    with (FOLDER / f"{tool.name}.log").open("w") as log:
        subprocess.run(
            [*command, told], cwd=FOLDER, env=environment, stdout=log, stderr=log, timeout=TIMEOUT, check=True
        )


def _key(case: Case) -> str:
    scripts = [(SCRIPTS / name).read_text() for name in (case.tool.script, "beside.py")]
    parts = json.dumps([case.tool.packages, case.options, MODELS[case.model], scripts])
    return f"{case.name}-{hashlib.sha256(parts.encode()).hexdigest()[:8]}"


@pytest.mark.tools
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each(
    case: Case, checkpoints: dict[Case, Path], models: Path, found: dict[Case, Compared | str], tmp_path: Path
) -> None:
    place = checkpoints[case]
    problem = json.loads((place / "written.json").read_text())["problem"]
    assert not problem, f"{case.tool.name} cannot write it; see {FOLDER / case.tool.name}.log"
    if case.refused:
        with pytest.raises(ModelError, match=re.escape(case.refused)) as refused:
            Engine.load(place / "checkpoint", replace(STOCK, fast_path=True))
        found[case] = str(refused.value)
    else:
        found[case] = compare(place, models / case.model, tmp_path)


def test_the_table_has_every_case() -> None:
    rows = DOCUMENT.read_text()
    for case in CASES:
        assert f"| {case.tool.described} | {case.label} | {case.model} |" in rows
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.fixture
def by_hand(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint of experts with what a tool without any error computes with it, and its model."""
    plain = make_tiny_model(tmp_path / "plain", "mixtral", with_tokenizer=False)
    quantized, numbers = quantize_folder(plain, tmp_path, *WRITERS["gptq"])
    place = tmp_path / "written"
    place.mkdir()
    quantized.rename(place / "checkpoint")
    logits, routed = forward(numbers, PROMPT)
    tensors = load_file(numbers / "model.safetensors")
    opened = open_folder(place / "checkpoint")
    assert isinstance(opened, QuantizedCheckpoint)
    names = opened.quantization.weights
    computed = {f"weight {name}": tensors[name] for name in names}
    computed |= {f"router {i}": each.logits for i, each in enumerate(routed)}
    save_file({"logits": logits, **computed}, place / "computed.safetensors")
    return place, plain


def test_what_is_compared(by_hand: tuple[Path, Path], tmp_path: Path) -> None:
    compared = compare(*by_hand, tmp_path)
    assert (compared.as_stored, compared.flips) == (compared.modules, ())
    assert max(compared.off, compared.off_routed) < 1e-3


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        ("weight model.layers.1.self_attn.o_proj.weight", "weights of .* are not the tool's"),
        ("logits", "logits are .* off"),
    ],
)
def test_differences_are_found(tensor: str, error: str, by_hand: tuple[Path, Path], tmp_path: Path) -> None:
    file = by_hand[0] / "computed.safetensors"
    computed = load_file(file)
    computed[tensor][3, 7] += 2.0
    save_file(computed, file)
    with pytest.raises(AssertionError, match=error):
        compare(*by_hand, tmp_path)


def test_tokens_that_are_routed_otherwise() -> None:
    own = Routed(torch.tensor([[3.0, 2.0, 1.0], [3.0, 1.0, 1.5]]), 2)
    (turned,) = flips([own], [torch.tensor([[3.0, 2.0, 0.5], [2.75, 1.5, 1.25]])])
    assert turned.chosen.tolist() == [[0, 1], [0, 1]]
    assert turned.flips == (Flip(0, 1, (0.5, 0.25), 0.5),)
