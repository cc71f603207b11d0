"""What an operator replaces of a model's own files: its tokenizer, its chat template, its generation_config.json.

A model with replaced files is a folder of the model cache, with links to the other files of the model. So everything
that reads a model finds the replaced files in the place of the model's own.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from services.errors import ModelError
from services.models.cache import Progress, cached, place
from services.models.generation import FILE as GENERATION_CONFIG
from services.models.hub import fetch_from_hub
from services.models.info import ModelInfo
from services.models.pooling import OVERRIDES
from services.models.resolve import resolve, split
from services.text.tokenizer_config import TEMPLATES

TEMPLATE = "chat_template.jinja"
# the files that a tokenizer consists of
_OF_TOKENIZERS = ("tokenizer", "special_tokens_map", "added_tokens", "vocab.", "merges.", "chat_template")


@dataclass(frozen=True, slots=True)
class Replaced:
    """`tokenizer`: a folder or a hub id; `chat_template`: a Jinja template; `generation_config`: the JSON of such a
    file; `overrides`: JSON of fields that go before those of config.json (see `pooling`). What is empty stays the
    model's own."""

    tokenizer: str = ""
    chat_template: str = ""
    generation_config: str = ""
    overrides: str = ""


def resolve_replaced(model: str, replaced: Replaced, cache_dir: Path, progress: Progress = print) -> Path:
    """Return the folder of the model with the replaced files, see `resolve`.

    Raises ModelError also if the tokenizer is not found, or has ids for which the model has no logits.
    """
    folder = resolve(model, cache_dir, progress)
    if replaced == Replaced():
        return folder
    links = {
        file.name: file
        for file in folder.iterdir()
        if file.is_file() or file.name == TEMPLATES or file.name[:1].isdigit()
    }
    written: dict[str, bytes] = {}
    if replaced.tokenizer:
        tokenizer = _tokenizer_folder(replaced.tokenizer, cache_dir, progress)
        _check_vocabulary(tokenizer, folder, replaced.tokenizer)
        links = {name: file for name, file in links.items() if not name.startswith(_OF_TOKENIZERS)}
        files = (file for file in tokenizer.iterdir() if file.is_file() and file.name.startswith(_OF_TOKENIZERS))
        written |= {file.name: file.read_bytes() for file in files}
        links.pop(TEMPLATES, None)
        for file in (tokenizer / TEMPLATES).glob("*.jinja"):
            written[f"{TEMPLATES}/{file.name}"] = file.read_bytes()
    if replaced.chat_template:
        links.pop(TEMPLATES, None)
        written = {name: content for name, content in written.items() if not name.startswith(TEMPLATES)}
        written[TEMPLATE] = replaced.chat_template.encode()
    if replaced.generation_config:
        written[GENERATION_CONFIG] = replaced.generation_config.encode()
    if replaced.overrides:
        written[OVERRIDES] = replaced.overrides.encode()
    links = {name: file for name, file in links.items() if name not in written}
    contents = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(written.items())}
    identity = repr(("replaced", str(folder), sorted(links), contents))

    def build(target: Path, _: Path) -> None:
        target.mkdir()
        for name, file in links.items():
            (target / name).symlink_to(file)
        for name, content in written.items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)

    return cached(place(cache_dir, identity, folder.name), build, progress)


def with_replaced(info: ModelInfo, folder: Path, replaced: Replaced) -> ModelInfo:
    """Return the info of the model in `folder` with a revision that also names what vectors are made of, and the
    replaced files on which the text and the end of an output depend. Prompts and sampling are fixed when a request is
    submitted."""
    if not replaced.tokenizer and not replaced.generation_config and not info.pooling:
        return info
    digest = hashlib.sha256(repr((info.revision, sorted(info.eos_token_ids))).encode())
    if info.pooling:
        digest.update(repr(info.pooling).encode())
    if replaced.tokenizer:
        digest.update((folder / "tokenizer.json").read_bytes())
    return replace(info, revision=digest.hexdigest()[:12])


def local_tokenizer(name: str) -> Path | None:
    """The folder on this machine that the setting `tokenizer` names; None if it names a repository of the hub. Raises
    ValueError if the folder is absent, or without a tokenizer."""
    repo, _ = split(name)
    folder = Path(repo).expanduser()
    if not folder.is_dir():
        if folder.exists() or folder.is_absolute() or repo.startswith((".", "~")):
            raise ValueError(f"{folder} is no folder")
        return None
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{folder} has no tokenizer.json")
    return folder


def _tokenizer_folder(name: str, cache_dir: Path, progress: Progress) -> Path:
    try:
        folder = local_tokenizer(name)
    except ValueError as error:
        raise ModelError(f"tokenizer: {error}") from None
    if folder is None:
        repo, revision = split(name)
        folder = fetch_from_hub(repo, cache_dir, progress, revision, tokenizer=True)
        if not (folder / "tokenizer.json").is_file():
            raise ModelError(f"tokenizer: {name} has no tokenizer.json")
    return folder


def _check_vocabulary(tokenizer: Path, folder: Path, name: str) -> None:
    from services.text.token_bytes import TextTables

    ids = len(TextTables.load(tokenizer, exact=False).token_bytes)
    config = json.loads((folder / "config.json").read_bytes())
    logits = (config.get("text_config") or config).get("vocab_size")
    if logits is not None and ids > logits:
        raise ModelError(f"tokenizer: {name} has {ids} ids, the model only {logits} logits")
