"""The model that a program runs on: random weights of a shape as a folder that is served."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from load.in_process import Setup, run_in_process
from load.options import Options, model_folder
from load.trace import Request
from load.workloads import any_prompt
from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.settings import EngineSettings
from services.engine.weights.random_tensors import RandomTensors
from services.scheduling import Knobs
from services.text import TextTables


def test_a_shape_is_written_once_as_a_model_with_a_tokenizer(tmp_path: Path) -> None:
    options = Options(shape="tiny", cache_dir=tmp_path, device="cpu", dtype="float32")
    folder = model_folder(options)
    written = (folder / "model.safetensors").stat()
    assert folder.name == "tiny"
    assert model_folder(options) == folder
    assert (folder / "model.safetensors").stat() == written
    settings = EngineSettings(device="cpu", dtype="float32", kv_blocks=64)
    drawn = RandomTensors(load_config(folder), torch.float32, torch.device("cpu"))
    trace = [Request(any_prompt(length, length), 8) for length in (5, 40)]
    kept, direct = (
        run_in_process(Engine.load(folder, settings, tensors=tensors), trace, Setup(Knobs(4))).outputs
        for tensors in (None, drawn)
    )
    assert kept == direct
    assert len(set(kept[0])) > 1
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    assert vocabulary == load_config(folder).vocab_size
    assert TextTables.load(folder, True)


def test_a_dtype_has_a_folder_of_its_own(tmp_path: Path) -> None:
    of = {
        dtype: model_folder(Options(shape="tiny", cache_dir=tmp_path, device="cpu", dtype=dtype))
        for dtype in ("float32", "bfloat16")
    }
    sizes = {dtype: (folder / "model.safetensors").stat().st_size for dtype, folder in of.items()}
    assert 1.9 < sizes["float32"] / sizes["bfloat16"] < 2.1
