"""Models on this machine: a GGUF file or a transformers folder."""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import version
from pathlib import Path

from services.errors import ModelError
from services.models.cache import Progress, cached, place
from services.models.convert import WARNING, convert
from services.models.gguf_file import is_first, name_of, parts_of
from services.models.gguf_index import Source
from services.models.info import is_complete
from services.models.json_file import read_json
from services.models.weights_files import PICKLES, SAFETENSORS, weights_files
from services.text.tokenizer_config import lacks_tokens

LISTS = ("auto_mappings.py", "configuration_auto.py")  # of transformers.models.auto, with the names of all types


def from_gguf(file: Path, cache_dir: Path, progress: Progress) -> Path:
    """Return the folder of the converted file, or of the parts of which it is the first, where most weights stay. They
    are converted again when a size or time changes. Raises ModelError if parts are absent."""
    parts = parts_of(Path(os.path.abspath(file)))  # links may lead to names without numbers
    identity = [Source.of(part) for part in parts]
    return _converted(parts[0], f"gguf {identity}", name_of(parts[0]), cache_dir, progress)


def from_folder(folder: Path, cache_dir: Path, progress: Progress) -> Path:
    """Return the folder itself if it has safetensors and says all that is read of its config and tokenizer without
    transformers, otherwise a converted one.

    Raises ModelError, which names what is missing.
    """
    folder = Path(os.path.abspath(folder))  # unlike `resolve`, this keeps the name of a link
    check_links(folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is no transformers model: it has no config.json{_instead(folder)}")
    weights = weights_files(folder)
    if not weights:
        raise ModelError(f"{folder} has no weights: none of {', '.join((*SAFETENSORS, *PICKLES))}")
    check_model_type(folder)
    if weights[0].suffix == ".safetensors" and is_complete(folder) and not lacks_tokens(folder):
        return folder
    identity = "\n".join(_stamp(file) for file in sorted(folder.iterdir()) if file.is_file())
    identity += f"\ntransformers {version('transformers')}"
    return _converted(folder, f"folder {identity}", folder.name, cache_dir, progress)


def check_links(folder: Path) -> None:
    """Raise ModelError if a file in `folder` is a link to nothing, as in a snapshot of the hub's cache of which a part
    was removed."""
    for file in sorted(folder.iterdir()):
        if file.is_symlink() and not file.exists():
            raise ModelError(f"{file} is a link to {os.readlink(file)}, which is absent; copy or download it again")


def check_model_type(folder: Path) -> None:
    """Raises ModelError if the config.json in `folder` names no `model_type`, or one that transformers does not know.

    Reads transformers' sources, since importing it takes seconds. A type whose name is elsewhere in the lists passes;
    `load_config` refuses it later."""
    config = read_json(folder / "config.json") or {}
    if "model_type" not in config:
        raise ModelError(f"{folder / 'config.json'} has no model_type")
    known = _lists()
    if known and f'"{config["model_type"]}"' not in known:
        kind, installed = config["model_type"], version("transformers")
        raise ModelError(f"{folder} has model_type {kind!r}, which transformers {installed} does not know")


def _lists() -> str:
    """The sources of the lists; empty if another version of transformers has them elsewhere."""
    spec = importlib.util.find_spec("transformers")
    places = spec.submodule_search_locations if spec else None
    files = [Path(place) / "models" / "auto" / name for place in places or () for name in LISTS]
    return "".join(file.read_text(encoding="utf-8") for file in files) if all(map(Path.is_file, files)) else ""


def _instead(folder: Path) -> str:
    """The GGUF files in `folder` that can be served, as the end of a message; empty if there are none."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() == ".gguf" and is_first(file)]
    if not files:
        return ""
    others = f" (or another of its {len(files)} GGUF files)" if len(files) > 1 else ""
    return f"; name its GGUF file instead: {files[0]}{others}"


def _converted(source: Path, identity: str, name: str, cache_dir: Path, progress: Progress) -> Path:
    folder = cached(place(cache_dir, identity, name), lambda target, _: convert(source, target, progress), progress)
    if (warning := folder / WARNING).is_file():
        progress(warning.read_text(encoding="utf-8"))
    return folder


def _stamp(file: Path) -> str:
    stat = file.stat()
    return f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}"
