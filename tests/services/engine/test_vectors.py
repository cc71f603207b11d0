"""Vectors of texts beside transformers' own hidden states, and their bits alone and in any batch."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from driver import Driver, Job
from tiny_models import make_tiny_model
from vector_models import expected_vectors, make_embedder, write_modules

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.errors import ModelError, SettingsError
from services.models.info import ModelInfo
from services.requests import SamplingParams
from services.text.tokenizer_config import ids_of_token

SETTINGS = EngineSettings(device="cpu", dtype="float32", kv_blocks=200)
LENGTHS = (1, 2, 7, 30, 61, 3)


def texts(vocabulary: int = 320) -> list[list[int]]:
    drawn = random.Random(3)
    return [[drawn.randrange(2, vocabulary) for _ in range(length)] for length in LENGTHS]


def jobs(engine: Engine, prompts: list[list[int]]) -> list[Job]:
    sampling = SamplingParams(1, logprobs=0, vector=engine.figures.vector)
    return [Job(f"v{i}/0", prompt, sampling) for i, prompt in enumerate(prompts)]


def bits(engine: Engine, prompts: list[list[int]]) -> list[bytes]:
    """The vectors of these texts in one batch."""
    done = Driver(engine, max_batch=len(prompts)).run(jobs(engine, prompts))
    assert not any(job.failed for job in done)
    return [job.logprobs[0].vector for job in done]


def check(folder: Path, settings: EngineSettings = SETTINGS, tolerance: float = 1e-5) -> Engine:
    """The engine of this folder makes transformers' vectors, with the same bits alone and together."""
    engine, prompts = Engine.load(folder, settings), texts()
    together = bits(engine, prompts)
    found = [np.frombuffer(one, "<f4") for one in together]
    for one, wanted in zip(found, expected_vectors(folder, prompts), strict=True):
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(one / scale, np.array(wanted) / scale, atol=tolerance)
    if settings.fast_path and "native" in engine.figures.numerics:
        assert [bits(engine, [prompt])[0] for prompt in prompts] == together
    return engine


@pytest.mark.parametrize("method", ["lasttoken", "mean_tokens"])
@pytest.mark.parametrize("fast_path", [True, False])
def test_a_decoder_makes_the_vectors_of_its_hidden_states(tmp_path: Path, method: str, fast_path: bool) -> None:
    folder = make_embedder(tmp_path / "tiny", method=method)
    engine = check(folder, replace(SETTINGS, fast_path=fast_path, cache_dir=SETTINGS.cache_dir))
    assert ("native" in engine.figures.numerics) == fast_path
    assert engine.figures.whole_prompts == (method == "mean_tokens")
    assert engine.figures.max_model_len == 257


def test_a_vector_in_chunks_has_the_same_bits(tmp_path: Path) -> None:
    engine, prompts = Engine.load(make_embedder(tmp_path / "tiny"), SETTINGS), texts()
    done = Driver(engine, random.Random(1)).run(jobs(engine, prompts))
    assert [job.logprobs[0].vector for job in done] == bits(engine, prompts)


def test_layers_behind_pooling(tmp_path: Path) -> None:
    folder = make_embedder(tmp_path / "tiny", "gemma3_text")
    write_modules(folder, "mean_tokens", normalize=False, dense=24)
    assert check(folder).figures.vector == 24


def test_factors_and_caps_of_logits_are_none_of_a_vector(tmp_path: Path) -> None:
    for family in ("granite", "gemma2"):
        for fast_path in (True, False):
            check(make_embedder(tmp_path / f"{family}{fast_path}", family), replace(SETTINGS, fast_path=fast_path))


def test_a_checkpoint_without_vocabulary(tmp_path: Path) -> None:
    """Embedding models are often saved without the product that gives logits, and under their base's names."""
    from safetensors.torch import load_file, save_file

    folder = make_embedder(tmp_path / "tiny", "mistral", tie_word_embeddings=False)
    file = folder / "model.safetensors"
    stored = {n.removeprefix("model."): t for n, t in load_file(file).items() if n != "lm_head.weight"}
    save_file(stored, file, {"format": "pt"})
    for fast_path in (True, False):
        check(folder, replace(SETTINGS, fast_path=fast_path))


def test_what_is_not_served_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_embedder(tmp_path / "tiny")
    with pytest.raises(SettingsError, match=r"tp=2.*vectors"):
        Engine.load(folder, replace(SETTINGS, tp=2))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ModelError, match="pooling_mode_max_tokens is not served"):
        ModelInfo.load(folder)


def test_an_engine_of_a_model_that_generates_has_no_vectors(tmp_path: Path) -> None:
    folder = make_embedder(tmp_path / "tiny")
    assert "vector" in Engine.load(folder, SETTINGS).figures.features
    (folder / "modules.json").unlink()
    assert "vector" not in Engine.load(folder, SETTINGS).figures.features


def test_a_sequence_classifier_of_a_decoder(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    folder = make_tiny_model(tmp_path / "tiny", "qwen3")
    config = json.loads((folder / "config.json").read_text())
    told = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    (folder / "config.json").write_text(json.dumps(config | told))
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    for fast_path in (True, False):
        engine = Engine.load(folder, replace(SETTINGS, fast_path=fast_path))
        for vector, ids in zip(bits(engine, texts()), texts(), strict=True):
            wanted = model(torch.tensor([ids])).logits[0].detach().numpy()
            np.testing.assert_allclose(np.frombuffer(vector, "<f4"), wanted, atol=1e-5)


def test_a_reranker_compares_two_logits(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(tmp_path / "tiny", "qwen3", tie_word_embeddings=True)
    no, yes = "filler1", "filler2"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"classifier_from_token": [no, yes]}))
    ids = [next(iter(ids_of_token(folder, token))) for token in (no, yes)]
    for fast_path in (True, False):
        engine = Engine.load(folder, replace(SETTINGS, fast_path=fast_path))
        assert engine.figures.vector == 1
        for vector, prompt in zip(bits(engine, texts()), texts(), strict=True):
            logits = model(torch.tensor([prompt])).logits[0, -1]
            np.testing.assert_allclose(
                np.frombuffer(vector, "<f4"), [float(logits[ids[1]] - logits[ids[0]])], atol=1e-4
            )
