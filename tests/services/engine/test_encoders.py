"""Encoders: a flat batch of many texts, with attention within each, beside transformers' model for each text alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from driver import Driver, Job
from test_vectors import SETTINGS, bits, check, texts
from vector_models import ENCODERS, make_encoder, write_modules

from services.engine.engine import Engine
from services.models.info import ModelInfo
from services.requests import SamplingParams


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("method", ["mean_tokens", "cls_token"])
def test_an_encoder_makes_the_vectors_of_its_hidden_states(tmp_path: Path, family: str, method: str) -> None:
    folder = make_encoder(tmp_path / "tiny", family, method)
    info = ModelInfo.load(folder)
    assert info.pooling is not None
    assert (info.pooling.encoder, info.max_model_len) == (True, 128)
    for fast_path in (True, False):
        engine = check(folder, replace(SETTINGS, fast_path=fast_path))
        assert engine.figures.whole_prompts


def test_an_encoder_with_layers_behind_pooling(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "tiny", "gemma3_text")
    write_modules(folder, "mean_tokens", dense=24)
    assert check(folder).figures.vector == 24


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "modernbert", "distilbert"])
@pytest.mark.parametrize("labels", [1, 3])
def test_a_classifier_of_pairs(tmp_path: Path, family: str, labels: int) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    folder = make_encoder(tmp_path / "tiny", family, labels=labels)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    for fast_path in (True, False):
        engine = Engine.load(folder, replace(SETTINGS, fast_path=fast_path))
        assert engine.figures.vector == labels
        told_apart = family == "bert"
        prompts = [prompt for prompt in texts() if len(prompt) > 1]
        jobs = [
            Job(
                f"{i}/0",
                prompt,
                SamplingParams(1, logprobs=0, vector=labels, second_text=len(prompt) // 2 * told_apart),
            )
            for i, prompt in enumerate(prompts)
        ]
        for job in Driver(engine, max_batch=9).run(jobs):
            types = (torch.arange(len(job.prompt)) >= len(job.prompt) // 2).long()[None]
            more = {"token_type_ids": types} if told_apart else {}
            with torch.inference_mode():
                wanted = model(torch.tensor([job.prompt]), **more).logits[0].numpy()
            np.testing.assert_allclose(np.frombuffer(job.logprobs[0].vector, "<f4"), wanted, atol=1e-4)


def test_a_model_whose_files_say_less(tmp_path: Path) -> None:
    """Without files of sentence-transformers an encoder's vector is that of its first token."""
    folder = make_encoder(tmp_path / "tiny", "bert", "cls_token")
    engine = Engine.load(folder, SETTINGS)
    for file in [folder / "modules.json", *(folder / "1_Pooling").iterdir()]:
        file.unlink()
    assert bits(Engine.load(folder, SETTINGS), texts()) == bits(engine, texts())
