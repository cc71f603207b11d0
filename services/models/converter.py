"""The process that converts models: `python -m services.models.converter SOURCE TARGET` (see `convert`).

It writes its progress to stdout: one line for each step, lines `count DONE TOTAL WHAT` meanwhile, and `converted`. Then
its input may name a module, and the arguments of its `main`, which is called. The last line on stderr says why it
failed.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from services.errors import ModelError
from services.files import says_disk_full
from services.models.convert import CONVERTED, COUNT, WARNING
from services.models.gguf_file import check_architecture, parts_of, read_gguf, write_head
from services.models.gguf_index import KINDS, Source
from services.models.gguf_rotary import complete_config
from services.models.gguf_vocabulary import Vocabulary
from services.models.info import is_complete
from services.models.weights_files import weights_files
from services.text.tokenizer_config import TEMPLATES, lacks_tokens

EVERY = 0.2  # seconds between lines `count`

# As for an engine, whose trial this process may run afterwards. torch reads it when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# beginnings of the names of files that hold a tokenizer, or from which transformers makes one
_OF_TOKENIZERS = ("tokenizer", "vocab", "merges", "spiece", "sentencepiece", "tiktoken", "tekken")


def main(source: Path, target: Path) -> None:
    try:
        _convert(source, target)
    except Exception as error:
        if says_disk_full(str(error)):  # of safetensors and tokenizers, too
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
    """Write an index of the weights, and those that cannot be read where they are. Tokenizer, chat template and special
    tokens come from the file's metadata (see `Vocabulary`).

    Quantised weights that no backend executes as they are stored become bfloat16: this takes half the size of float32,
    and its rounding error (relative 0.0014) is far below the error of the quantisation. Weights of a floating-point
    type keep their type.
    """
    parts = parts_of(source)
    readers = [read_gguf(part) for part in parts]
    architecture = check_architecture(readers[0])
    vocabulary = Vocabulary.read(readers[0].fields)
    try:
        _convert_parts(parts, readers, vocabulary, target, scratch)
    except ModelError:
        raise
    except Exception as error:  # transformers reads what it does not know until something is absent
        raise ModelError(f"it is of the architecture {architecture!r}: {type(error).__name__}: {error}") from error


def _convert_parts(parts: list[Path], readers: list[Any], vocabulary: Vocabulary, target: Path, scratch: Path) -> None:
    source, sources = parts[0], [Source.of(part) for part in parts]
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    fields, dtype = readers[0].fields, _dtype(tensors)
    say(f"reading the weights of {source.name}")
    if len(parts) > 1:
        write_head(readers, source := scratch / source.name)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from services.models.gguf_once import already_read, without_pieces
    from services.models.gguf_weights import GgufWeights, hash_blocks, write_weights

    with already_read(without_pieces(fields), tensors):
        config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    config.dtype = dtype
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    complete_config(model.config, fields, tensors)
    weights = GgufWeights(
        [reader.tensors for reader in readers],
        fields["general.architecture"].contents(),
        model,
        getattr(torch, dtype),
        KINDS if dtype == "bfloat16" else frozenset(),
    )
    index = write_weights(weights, sources, target, _counter("loading weights"))
    with ThreadPoolExecutor(1) as pool:
        hashed = pool.submit(hash_blocks, index, weights.names, _counter("hashing weights"))
        _write_texts(model, vocabulary, target)
        if vocabulary.warning:
            (target / WARNING).write_text(f"warning: {source.name}: {vocabulary.warning}", encoding="utf-8")
        hashed.result().write(target)


def _write_texts(model: Any, vocabulary: Vocabulary, target: Path) -> None:
    model.config.architectures = [type(model).__name__]
    # what the class of a config has by default belongs to another vocabulary
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id, config.pad_token_id = None, vocabulary.ends or None, None
        config.save_pretrained(target)
    say("converting the tokenizer")
    vocabulary.save(target, model.config.max_position_embeddings)


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
            raise ModelError("the folder has no tokenizer; copy tokenizer.json and tokenizer_config.json into it")
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


def say(line: str) -> None:
    """Write the line in one call, since another thread may write one meanwhile."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        _count_what_transformers_counts()
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
        words = " ".join(str(error).split())
        sys.exit(words if isinstance(error, ModelError) else f"{type(error).__name__}: {words}")
    say(CONVERTED)
    if more := sys.stdin.read():
        sys.stdout = sys.stderr  # nobody reads it any more
        module, *arguments = json.loads(more)
        importlib.import_module(module).main(*arguments)
