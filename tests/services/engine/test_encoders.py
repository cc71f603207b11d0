"""Encoders: a flat batch of many texts, with attention within each, beside transformers' model for each text alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from driver import Driver, Job
from marked import full
from test_vectors import SETTINGS, bits, check, texts
from vector_models import ENCODERS, make_encoder, write_modules

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine
from services.engine.families.bert import Bert
from services.engine.families.decoder_weights import DecoderWeights
from services.engine.preload import preload
from services.engine.startup.proof.trial import trial
from services.engine.startup.proof.verdict import bound_of
from services.models.info import ModelInfo
from services.requests import SamplingParams


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("method", ["mean_tokens", *full(["cls_token"])])
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


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
@pytest.mark.parametrize("kind", [{}, {"weights": "int8"}, {"dtype": "bfloat16"}])
def test_the_trial_of_the_compiled_layers(tmp_path: Path, family: str, kind: dict[str, Any]) -> None:
    folder, settings = make_encoder(tmp_path / "tiny", family), replace(SETTINGS, **kind)
    assert trial(folder, settings) <= bound_of(settings, getattr(torch, settings.dtype)) / 2.5


def test_the_trial_finds_a_wrong_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_encoder(tmp_path / "tiny", "bert")
    monkeypatch.setattr(Bert, "_norm", lambda self, name: DecoderWeights._norm(self, "embeddings.LayerNorm"))
    assert trial(folder, SETTINGS) > bound_of(SETTINGS, torch.float32)


def test_the_trial_finds_a_number_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = CpuDecoder.logits

    def wrong(self: CpuDecoder, *given: Any) -> torch.Tensor:
        made = logits(self, *given)
        made[-1, 7] = torch.nan
        return made

    monkeypatch.setattr(CpuDecoder, "logits", wrong)
    assert not trial(make_encoder(tmp_path / "tiny", "bert"), SETTINGS) <= bound_of(SETTINGS, torch.float32)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_which_families_have_compiled_layers(tmp_path: Path, family: str) -> None:
    folder = make_encoder(tmp_path / "tiny", family)
    assert "native" in Engine.load(folder, SETTINGS).figures.numerics


def test_bits_do_not_depend_on_batches_or_slices(tmp_path: Path) -> None:
    """Many texts are cut into slices, each of whole texts; few are shared by all threads."""
    engine = Engine.load(make_encoder(tmp_path / "tiny", "bert"), replace(SETTINGS, threads=2))
    drawn = random.Random(5)
    many = [[drawn.randrange(320) for _ in range(drawn.choice([1, 3, 20, 64, 127]))] for _ in range(40)]
    together = bits(engine, many)
    for size in (1, 3, 7):
        assert [one for i in range(0, len(many), size) for one in bits(engine, many[i : i + size])] == together


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_waiting_process_prepares_for_an_encoder(tmp_path: Path, family: str) -> None:
    assert not preload(make_encoder(tmp_path / "tiny", family), SETTINGS).fast_path_fault
