"""The process that converts models: `python -m services.models.converter SOURCE TARGET` (see `convert`).

It writes its progress to stdout: one line for each step, and lines `count DONE TOTAL WHAT` meanwhile. The last line on
stderr says why it failed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.errors import ModelError
from services.models.blocks import KINDS
from services.models.convert import COUNT
from services.models.gguf_file import check_architecture, parts_of, read_gguf, write_head
from services.models.gguf_rotary import complete_config
from services.models.info import is_complete
from services.models.weights_files import weights_files
from services.text.tokenizer_config import TEMPLATES, lacks_tokens

# Vocabularies whose merges were learned with each digit as a piece of its own, by their name in a GGUF file
# ("tokenizer.ggml.pre"), for which transformers (5.23) creates a plain GPT-2 splitter. With that splitter, "\n\n1" or
# "  2" become other tokens than those that the model was trained on.
DIGIT_BY_DIGIT = frozenset({"codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"})
PLAIN_GPT2 = frozenset({"default", "gpt-2", "exaone4", "granite-docling", "jais", "mpt", "olmo", "trillion"})

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
EVERY = 0.2  # seconds between lines `count`

# beginnings of the names of files that hold a tokenizer, or from which transformers makes one
_OF_TOKENIZERS = ("tokenizer", "vocab", "merges", "spiece", "sentencepiece", "tiktoken", "tekken")


def main(source: Path, target: Path) -> None:
    _count_what_transformers_counts()
    try:
        _convert(source, target)
    except Exception as error:
        if any(os.strerror(number) in str(error) for number in DISK_FULL):  # of safetensors and tokenizers, too
            raise ModelError(f"no space is left on the disk of {target.parents[1]}") from error  # its parent is removed
        raise
    for needed in ("tokenizer.json", "config.json", "generation_config.json"):
        if not (target / needed).exists():
            raise RuntimeError(f"transformers made no {needed} of it")
    for weights in target.glob("*.safetensors"):
        if not weights.is_symlink():  # written here, readable for the owner only
            weights.chmod((target / "config.json").stat().st_mode)


def _convert(source: Path, target: Path) -> None:
    target.mkdir()
    if source.is_dir():
        convert_folder(source, target)
    else:
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            convert_gguf(source, target, Path(scratch))


def _count_what_transformers_counts() -> None:
    """Write the lines `count` in place of the progress bars of transformers."""
    from tqdm import tqdm
    from transformers.utils import logging

    class Counting(tqdm):  # type: ignore[misc]  # tqdm has no types
        monitor_interval = 0

        def display(self, *_: object, **__: object) -> None:
            if self.total:
                say(f"{COUNT}{self.n} {self.total} {self.desc.removesuffix(': ').lower()}")

    logging.set_tqdm_hook(
        lambda _, args, options: Counting(*args, **options | {"disable": False, "mininterval": EVERY})
    )


def _counter(what: str) -> Callable[[int, int], None]:
    """A function that writes lines `count`, of which it gets the two numbers."""
    said = 0.0

    def count(done: int, total: int) -> None:
        nonlocal said
        if done == total or time.monotonic() - said > EVERY:
            said = time.monotonic()
            say(f"{COUNT}{done} {total} {what}")

    return count


def convert_gguf(source: Path, target: Path, scratch: Path) -> None:
    """Write the weights, one tensor after another. Tokenizer, chat template and special tokens come from the file's
    metadata.

    Quantised weights that no backend executes as they are stored become bfloat16: this takes half the size of float32,
    and its rounding error (relative 0.0014) is far below the error of the quantisation. Weights of a floating-point
    type keep their type.
    """
    parts = parts_of(source)
    readers = [read_gguf(part) for part in parts]
    architecture = check_architecture(readers[0])
    try:
        _convert_parts(parts, readers, target, scratch)
    except ModelError:
        raise
    except Exception as error:  # transformers reads what it does not know until something is absent
        raise ModelError(f"it is of the architecture {architecture!r}: {type(error).__name__}: {error}") from error


def _convert_parts(parts: list[Path], readers: list[Any], target: Path, scratch: Path) -> None:
    source = parts[0]
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    fields, dtype = readers[0].fields, _dtype(tensors)
    say(f"reading the weights of {source.name}")
    if len(parts) > 1:
        write_head(readers, source := scratch / source.name)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from services.models.gguf_once import already_read
    from services.models.gguf_weights import GgufWeights, write_weights

    with already_read(fields, tensors):
        config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    config.dtype = dtype
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    complete_config(model.config, fields, tensors)
    keep = KINDS if dtype == "bfloat16" else frozenset()
    weights = GgufWeights(tensors, fields["general.architecture"].contents(), model, getattr(torch, dtype), keep)
    count = write_weights(weights, target, _counter("loading weights"))
    say(f"kept {count} tensors as they are stored")
    metadata = {name: field.contents() for name, field in fields.items() if len(field.data) == 1}
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(target)
    model.generation_config.eos_token_id = _ends(model.generation_config.eos_token_id, metadata)
    model.generation_config.save_pretrained(target)
    with already_read(fields, tensors):
        _convert_tokenizer(source, target, model.config, metadata)


def _convert_tokenizer(source: Path, target: Path, config: Any, metadata: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    say("converting the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.model_max_length = getattr(config, "max_position_embeddings", tokenizer.model_max_length)
    _split_as_trained(tokenizer.backend_tokenizer, metadata)
    tokenizer.save_pretrained(target)
    _drop_beyond(target / "tokenizer.json", config.vocab_size)


def convert_folder(source: Path, target: Path) -> None:
    """Create what the folder lacks (safetensors, a whole config.json, all tokens in tokenizer.json) as transformers
    reads it, and link to its other files."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if weights_files(source)[0].suffix != ".safetensors":
        say(f"reading the weights of {source.name}")
        model, found = AutoModelForCausalLM.from_pretrained(source, dtype="auto", output_loading_info=True)
        if missing := sorted(found["missing_keys"]):  # transformers draws them at random
            raise ModelError(f"{len(missing)} tensors of the model are absent, such as {missing[0]}")
        say("writing them as safetensors")
        model.save_pretrained(target)
    if not is_complete(source):
        AutoConfig.from_pretrained(source).to_json_file(target / "config.json", use_diff=False)
    if lacks_tokens(source):
        if not any(file.name.startswith(_OF_TOKENIZERS) for file in source.iterdir()):
            raise RuntimeError("the folder has no tokenizer; copy tokenizer.json and tokenizer_config.json into it")
        say("converting the tokenizer")
        AutoTokenizer.from_pretrained(source).save_pretrained(target)
    for file in source.iterdir():
        kept = file.name == TEMPLATES or (file.is_file() and not file.name.endswith((".bin", ".bin.index.json")))
        if kept and not (target / file.name).exists():
            (target / file.name).symlink_to(file.resolve())
    if not (target / "generation_config.json").exists():
        from transformers import GenerationConfig

        GenerationConfig.from_model_config(AutoConfig.from_pretrained(source)).save_pretrained(target)


def _dtype(tensors: list[Any]) -> str:
    """What numbers are stored as: it follows the type of most weights."""
    amounts: dict[str, int] = {}
    for tensor in tensors:
        kind = tensor.tensor_type.name
        amounts[kind] = amounts.get(kind, 0) + int(tensor.n_elements)
    most = max(amounts, key=lambda kind: amounts[kind])
    return {"F32": "float32", "F16": "float16"}.get(most, "bfloat16")


def _ends(eos: int | list[int] | None, metadata: dict[str, Any]) -> int | list[int] | None:
    """Return the end tokens: a GGUF file names the end of text and, if it differs, the end of a turn."""
    turn = metadata.get("tokenizer.ggml.eot_token_id")
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    if turn is None or turn in ends:
        return eos
    return [*ends, int(turn)]


def _split_as_trained(backend: Any, metadata: dict[str, Any]) -> None:
    from tokenizers import pre_tokenizers

    splitter = metadata.get("tokenizer.ggml.pre", "default")
    if metadata.get("tokenizer.ggml.model") != "gpt2" or not isinstance(
        backend.pre_tokenizer, pre_tokenizers.ByteLevel
    ):
        return
    if splitter in DIGIT_BY_DIGIT:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif splitter not in PLAIN_GPT2:
        say(f"warning: the way {splitter!r} splits text is not known; GPT-2's is used, some texts get other tokens")


def _drop_beyond(file: Path, vocab_size: int) -> None:
    """Remove added tokens without an embedding: transformers adds those of GPT-2 to every vocabulary."""
    raw = json.loads(file.read_bytes())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["id"] < vocab_size]
    file.write_text(json.dumps(raw, ensure_ascii=False), encoding="utf-8")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
        words = " ".join(str(error).split())
        sys.exit(words if isinstance(error, ModelError) else f"{type(error).__name__}: {words}")
