"""Local models: folders and GGUF files."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from services.engine.backends.stock.loading import read_model
from services.engine.weights.tensors import Checkpoint
from services.errors import ModelError
from services.models import ModelInfo, resolve
from services.models.local import check_model_type
from services.text import Tokenizer

ROOT = Path(__file__).parents[3]


def greedy(folder: Path) -> list[int]:
    model = read_model(folder, torch.float32)
    return model.generate(torch.tensor([[5, 6, 7]]), do_sample=False, max_new_tokens=30, min_new_tokens=30)[0].tolist()


def test_a_complete_folder_is_used_as_it_is(tiny: Path, tmp_path: Path) -> None:
    assert resolve(str(tiny), tmp_path) == tiny
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_named_after_itself(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny)
    assert ModelInfo.load(resolve(".", tmp_path)).name == "tiny-llama"


def test_several_processes_convert_a_gguf_once(tiny: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    source, cache = shutil.copy(tiny_gguf, tmp_path), tmp_path / "cache"
    program = "import sys; from pathlib import Path; from services.models import resolve;"
    program += "from services import progress; progress.INTERVAL = 0.0;"  # a line for each step of a bar
    program += "print(resolve(sys.argv[1], Path(sys.argv[2])))"
    command = [sys.executable, "-c", program, str(source), str(cache)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0].splitlines() for process in processes]
    folders = {output[-1] for output in outputs}
    assert len(folders) == 1
    assert sum(line.startswith("reading the weights") for output in outputs for line in output) == 1
    counts = [line for output in outputs for line in output if re.match(r"loading weights: \d+ of \d+ tensors", line)]
    assert any("(100%)" in line for line in counts)
    assert not [line for output in outputs for line in output if line.startswith("count ")]
    folder = Path(folders.pop())
    assert {file.name for file in folder.parent.iterdir()} == {"tiny.F32", "lock"}

    assert greedy(folder) == greedy(tiny)
    info = ModelInfo.load(folder)
    assert (info.name, info.max_model_len, info.eos_token_ids) == ("tiny.F32", 128, {2, 3})
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"  # nothing was quantised
    tokenizer, original = Tokenizer.load(folder), Tokenizer.load(tiny)
    assert list(tokenizer.tables.token_bytes) == list(original.tables.token_bytes)
    assert tokenizer.special_ids == {0, 1, 2, 3}
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == "<s>hi</s>"
    assert [original.decode([i]) for i in original.encode("at 1")] == ["at", " 1"]
    assert [tokenizer.decode([i]) for i in tokenizer.encode("at 1")] == ["at", " ", "1"]  # SmolLM's splitter

    Path(source).write_bytes(b"GGUF")  # another file with the same name is converted again
    with pytest.raises(ModelError, match="cannot be converted"):
        resolve(str(source), cache)


@pytest.mark.usefixtures("converts_here")
def test_a_conversion_that_was_killed_is_done_again(tiny_gguf: Path, tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from services.models import resolve;"
    program += "resolve(sys.argv[1], Path(sys.argv[2]))"
    command = [sys.executable, "-u", "-c", program, str(tiny_gguf), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while not process.stdout.readline().startswith("reading the weights"):
            assert process.poll() is None
        process.kill()
    assert not list(tmp_path.glob("models/*/tiny.F32"))
    folder = resolve(str(tiny_gguf), tmp_path)
    assert {file.name for file in folder.parent.iterdir()} == {"tiny.F32", "lock"}
    assert "model.norm.weight" in Checkpoint(folder)


@pytest.mark.usefixtures("converts_here")
def test_an_old_folder_is_converted(tiny: Path, tmp_path: Path) -> None:
    """The folder has a .bin file, vocab.json and merges.txt, and no generation_config.json."""
    old = tmp_path / "old-llama"
    old.mkdir()
    raw = json.loads((tiny / "tokenizer.json").read_text())
    (old / "vocab.json").write_text(json.dumps(raw["model"]["vocab"]))
    (old / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, raw["model"]["merges"])]))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "GPT2Tokenizer"}
    (old / "tokenizer_config.json").write_text(json.dumps(special))
    shutil.copy(tiny / "config.json", old)
    torch.save(AutoModelForCausalLM.from_pretrained(tiny).state_dict(), old / "pytorch_model.bin")

    cache = tmp_path / "cache"
    folder = resolve(str(old), cache)
    assert folder.is_relative_to(cache)
    assert greedy(folder) == greedy(tiny)
    assert ModelInfo.load(folder).name == "old-llama"
    text = "the cat 東京"
    assert Tokenizer.load(folder).encode(text) == Tokenizer.load(tiny).encode(text)

    lines: list[str] = []
    assert resolve(str(old), cache, lines.append) == folder
    assert lines == []


@pytest.mark.usefixtures("converts_here")
def test_a_folder_without_a_tokenizer(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny / name, tmp_path / "model")
    with pytest.raises(ModelError, match="the folder has no tokenizer; copy"):
        resolve(str(tmp_path / "model"), tmp_path / "cache")


def test_a_broken_gguf_leaves_nothing_behind(tmp_path: Path) -> None:
    broken, cache = tmp_path / "broken.gguf", tmp_path / "cache"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(
        ModelError,
        match=r"broken\.gguf cannot be converted: the header of broken\.gguf, which has 104 bytes, cannot be read: ",
    ):
        resolve(str(broken), cache)
    assert [file.name for file in cache.rglob("*") if file.is_file()] == ["lock"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([], "no config.json"),
        (["config.json", "tokenizer.json"], "no weights"),
    ],
)
def test_an_incomplete_folder_says_what_is_missing(files: list[str], why: str, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).write_text("{}")
    with pytest.raises(ModelError, match=why):
        resolve(str(tmp_path), tmp_path / "cache")


@pytest.mark.parametrize("model", ["/no/such/folder", "./none", "none.gguf", "~/none/such"])
def test_a_missing_path_is_not_searched_on_the_hub(model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file or folder"):
        resolve(model, tmp_path)


def test_a_file_that_is_not_gguf_is_an_error(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"not a \.gguf one"):
        resolve(str(tiny / "config.json"), tmp_path)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("foo", r"model has model_type 'foo', which transformers [\d.]+ does not know"),
        (None, "config.json has no model_type"),
    ],
)
def test_a_type_that_transformers_does_not_know_is_named(
    kind: str | None, why: str, tiny: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny, tmp_path / "model")
    raw = json.loads((folder / "config.json").read_text())
    del raw["model_type"]
    (folder / "config.json").write_text(json.dumps(raw | ({"model_type": kind} if kind else {})))
    with pytest.raises(ModelError, match=why):
        resolve(str(folder), tmp_path / "cache")


def test_no_type_of_transformers_is_unknown(tmp_path: Path) -> None:
    for kind in CONFIG_MAPPING:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        check_model_type(tmp_path)


def test_a_folder_of_gguf_files_names_one_of_them(tmp_path: Path) -> None:
    for name in ("b-00001-of-00002.gguf", "b-00002-of-00002.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"no config\.json; name its GGUF file instead: .*/b-00001-of-00002\.gguf$"):
        resolve(str(tmp_path), tmp_path / "cache")
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelError, match=r"instead: .*/a\.gguf \(or another of its 2 GGUF files\)$"):
        resolve(str(tmp_path), tmp_path / "cache")
