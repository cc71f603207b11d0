"""TokenizerConfig: the class, special tokens and chat templates in the files beside a model's tokenizer.json."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from services.errors import ModelError
from services.limits import return_memory
from services.text.tokenizer_json import read_tokenizer_json

TEMPLATES = "additional_chat_templates"  # a folder of templates with other names than `default`
FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
DEFAULT_CLASS = "PreTrainedTokenizerFast"  # what transformers uses if only tokenizer.json is there


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """`named_tokens`: `bos_token`, `eos_token` etc. as text. `chat_template`: the source of the template, or None.
    `template_file`: where it is. `tool_template`: the source of the one for requests with tools, if the model has
    two."""

    tokenizer_class: str
    named_tokens: dict[str, str]
    chat_template: str | None
    template_file: Path
    tool_template: str | None = None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the config of the model in `folder`. A missing file counts as empty. Raises ModelError if a file is not
        JSON.

        Files of templates take precedence over the templates in tokenizer_config.json, as in transformers. Those in
        chat_template.json, which processors of pictures have, are the last.
        """
        config = _read_json(folder / "tokenizer_config.json")
        files = _template_files(folder)
        sources = {
            "chat_template.jinja": {name: file.read_text(encoding="utf-8") for name, file in files.items()},
            "tokenizer_config.json": _templates(config.get("chat_template")),
            "chat_template.json": _templates(_read_json(folder / "chat_template.json").get("chat_template")),
        }
        source = next((name for name, templates in sources.items() if "default" in templates), "tokenizer_config.json")
        return cls(
            str(config.get("tokenizer_class") or DEFAULT_CLASS),
            _named_tokens(_read_json(folder / "special_tokens_map.json") | config),
            sources[source].get("default"),
            folder / source,
            sources[source].get("tool_use"),
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def _template_files(folder: Path) -> dict[str, Path]:
    files = {file.stem: file for file in sorted((folder / TEMPLATES).glob("*.jinja"))}
    file = folder / "chat_template.jinja"
    return files | ({"default": file} if file.exists() else {})


def _templates(value: Any) -> dict[str, str]:
    """Return the templates by name, from a field that holds one template, an object of templates or a list of them."""
    if isinstance(value, list):
        value = {each["name"]: each["template"] for each in value}
    return {"default": value} if isinstance(value, str) else value if isinstance(value, dict) else {}


def lacks_tokens(folder: Path) -> bool:
    """Whether the tokenizer.json in `folder` is absent, or lacks tokens which files beside it declare and transformers
    adds, or has them with other properties."""
    if not (folder / "tokenizer.json").is_file():
        return True
    known = {token["content"]: token for token in read_tokenizer_json(folder).get("added_tokens") or ()}
    return any(
        content not in known or any(known[content].get(flag, value) != value for flag, value in flags.items())
        for content, flags in _declared(folder)
    )


def _declared(folder: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tokens that the files beside tokenizer.json declare, each with the FLAGS that it sets."""
    config = _read_json(folder / "tokenizer_config.json")
    listed = config.get("added_tokens_decoder")
    found: list[Any] = list(listed.values()) if isinstance(listed, dict) else []
    sources = [config]
    if not isinstance(listed, dict):  # files of older releases, which transformers reads in its place
        found += _read_json(folder / "added_tokens.json")
        sources.append(_read_json(folder / "special_tokens_map.json"))
    for source in sources:
        found += _named_tokens(source).values()
        for key in ("additional_special_tokens", "extra_special_tokens"):
            named = source.get(key) or ()
            found += named.values() if isinstance(named, dict) else named
    tokens = [
        (token, {}) if isinstance(token, str) else (token.get("content"), token) for token in found if token is not True
    ]
    return [(content, {flag: flags[flag] for flag in FLAGS if flag in flags}) for content, flags in tokens if content]


def end_token(folder: Path) -> frozenset[int]:
    """The id of the tokenizer's `eos_token`; empty if it names none that it knows."""
    eos = TokenizerConfig.load(folder).named_tokens.get("eos_token")
    return ids_of_token(folder, eos) if eos else frozenset()


def ids_of_token(folder: Path, content: str) -> frozenset[int]:
    """The ids of the token that tokenizer.json spells as `content`; empty if it knows none."""
    file = folder / "tokenizer.json"
    return _ids_of(folder, file.stat().st_mtime_ns, content) if file.is_file() else frozenset()


@functools.lru_cache(maxsize=8)
def _ids_of(folder: Path, _changed: int, content: str) -> frozenset[int]:
    raw = read_tokenizer_json(folder)
    added = {token["id"] for token in raw.get("added_tokens") or () if token["content"] == content}
    vocab = raw["model"].get("vocab")
    if not added and isinstance(vocab, dict) and content in vocab:
        added = {vocab[content]}
    elif not added and isinstance(vocab, list):  # Unigram: [piece, score]
        added = {i for i, entry in enumerate(vocab) if entry[0] == content}
    del raw, vocab
    return_memory()  # a large vocabulary takes some hundred megabytes meanwhile
    return frozenset(added)


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {key: value for key, value in config.items() if key.endswith("_token") and value}
    contents = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: value for key, value in contents.items() if isinstance(value, str)}
