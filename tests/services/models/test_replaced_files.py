"""A model with another tokenizer, chat template or generation config than its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from services.errors import ModelError
from services.models import ModelInfo, resolve
from services.models.pin import check_pin, pin
from services.models.replaced import Replaced, resolve_replaced, with_replaced
from services.text import Tokenizer

CHAT = [{"role": "user", "content": "the cat"}]


def other_tokenizer(tiny: Path, folder: Path, tokens: int = 0) -> Path:
    """The tokenizer of `tiny` with a template of its own, and with `tokens` more ids."""
    folder.mkdir()
    backend = Backend.from_file(str(tiny / "tokenizer.json"))
    backend.add_tokens([f"more{i}" for i in range(tokens)])
    backend.save(str(folder / "tokenizer.json"))
    config = {"chat_template": "other:{{ messages[0].content }}", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_without_replaced_files_the_model_stays_as_it_is(tiny: Path, tmp_path: Path) -> None:
    folder = resolve_replaced(str(tiny), Replaced(), tmp_path)
    assert folder == resolve(str(tiny), tmp_path)
    info = ModelInfo.load(folder)
    assert with_replaced(info, folder, Replaced()) == info


def test_another_chat_template(tiny: Path, tmp_path: Path) -> None:
    replaced = Replaced(chat_template="mine:{{ messages[0].content }}")
    folder = resolve_replaced(str(tiny), replaced, tmp_path)
    assert folder.name == tiny.name
    assert Tokenizer.load(folder).apply_chat_template(CHAT) == "mine:the cat"
    assert Tokenizer.load(tiny).apply_chat_template(CHAT) == "<s>the cat</s>"
    assert resolve_replaced(str(tiny), replaced, tmp_path) == folder
    assert resolve_replaced(str(tiny), Replaced(chat_template="{{ 1 }}"), tmp_path) != folder
    info = ModelInfo.load(folder)
    assert info == ModelInfo.load(tiny)  # the same weights
    assert with_replaced(info, folder, replaced) == info  # prompts are fixed at submission: the same pool


def test_another_tokenizer_comes_with_its_template(tiny: Path, tmp_path: Path) -> None:
    replaced = Replaced(tokenizer=str(other_tokenizer(tiny, tmp_path / "other")))
    folder = resolve_replaced(str(tiny), replaced, tmp_path)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.apply_chat_template(CHAT) == "other:the cat"
    assert tokenizer.config.named_tokens == {"bos_token": "<s>"}
    assert not (folder / "chat_template.jinja").exists()  # the model's own, which would take precedence
    both = resolve_replaced(str(tiny), Replaced(str(tmp_path / "other"), "mine"), tmp_path)
    assert Tokenizer.load(both).apply_chat_template(CHAT) == "mine"


def test_another_tokenizer_or_end_token_gives_another_pool(tiny: Path, tmp_path: Path) -> None:
    """Schedulers look for stop strings in the text, and gateways write it."""
    own = ModelInfo.load(tiny)
    tokenizer = Replaced(tokenizer=str(other_tokenizer(tiny, tmp_path / "other", tokens=0)))
    ends = Replaced(generation_config='{"eos_token_id": [2, 3]}')
    revisions = {own.revision}
    for replaced in (tokenizer, ends):
        folder = resolve_replaced(str(tiny), replaced, tmp_path)
        revisions.add(with_replaced(ModelInfo.load(folder), folder, replaced).revision)
    assert len(revisions) == 3


def test_a_generation_config_sets_the_end_tokens(tiny: Path, tmp_path: Path) -> None:
    folder = resolve_replaced(str(tiny), Replaced(generation_config='{"eos_token_id": [2, 3]}'), tmp_path)
    assert ModelInfo.load(folder).eos_token_ids == {2, 3}
    assert ModelInfo.load(tiny).eos_token_ids == {2}


def test_weights_behind_replaced_files_are_still_checked(tiny: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "own-llama"))
    pinned = pin(str(model), tmp_path)
    folder = resolve_replaced(pinned, Replaced(chat_template="mine{{ 1 }}"), tmp_path)
    check_pin(pinned, folder, tmp_path)
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    with pytest.raises(ModelError, match="have changed"):
        check_pin(pinned, folder, tmp_path)


def test_a_tokenizer_that_cannot_be_used_is_named(tiny: Path, tmp_path: Path) -> None:
    larger = other_tokenizer(tiny, tmp_path / "larger", tokens=5)
    size = ModelInfo.load(tiny).vocab_size
    with pytest.raises(ModelError, match=rf"larger has {size + 5} ids, the model only {size} logits"):
        resolve_replaced(str(tiny), Replaced(tokenizer=str(larger)), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"tokenizer: .*empty has no tokenizer\.json"):
        resolve_replaced(str(tiny), Replaced(tokenizer=str(tmp_path / "empty")), tmp_path)
    with pytest.raises(ModelError, match=r"tokenizer: .*missing is no folder"):
        resolve_replaced(str(tiny), Replaced(tokenizer=str(tmp_path / "missing")), tmp_path)
