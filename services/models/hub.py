"""Models of the Hugging Face hub, by id. A model that was fetched once is served without the hub, too."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.errors import HubUnavailable, ModelError
from services.models.cache import Progress, place
from services.models.local import from_folder
from services.models.weights_files import SAFETENSORS, chosen
from services.text.tokenizer_config import TEMPLATES

_TIMEOUT = 10.0  # seconds for the hub to answer
_COMMIT = re.compile("[0-9a-f]{40}")
_TEXT_PARTS = (".json", ".jinja", ".model", ".tiktoken", "merges.txt", "vocab.txt")


def fetch_from_hub(repo: str, cache_dir: Path, progress: Progress, revision: str = "", tokenizer: bool = False) -> Path:
    """Return the folder of a revision of `repo`: a commit, a branch or a tag; by default the newest. If the hub does
    not answer, it is the revision that was fetched last, by whatever program filled the hub's cache. For a commit that
    was fetched before, the hub is not asked.

    With `tokenizer`, only the text files are fetched.

    The files are in the hub's own cache (`HF_HOME`); our cache holds a link with the name of the model. Raises
    ModelError if the hub has no such model, HubUnavailable if it does not answer and nothing was fetched before.
    """
    link = _link(repo, cache_dir, revision, tokenizer)
    if not (_COMMIT.fullmatch(revision) and link.is_dir()):
        try:
            snapshot = _download(repo, revision, progress, tokenizer)
        except ConnectionError as error:
            found = _fetched(repo, revision) or (link.resolve() if link.is_dir() else None)
            if found is None:
                raise HubUnavailable(f"{repo!r} is no local path, and the hub cannot be reached: {error}") from None
            progress(f"the hub does not answer; {repo} is served as it was fetched last")
            snapshot = found
        for each in {link, _link(repo, cache_dir, snapshot.name, tokenizer)}:
            _point(each, snapshot)
    return link if tokenizer else from_folder(link, cache_dir, progress)


def fetched_commit(repo: str, cache_dir: Path, revision: str = "") -> str:
    """Return the commit of this revision that `fetch_from_hub` returned last."""
    return _link(repo, cache_dir, revision).resolve().name


def _link(repo: str, cache_dir: Path, revision: str, tokenizer: bool = False) -> Path:
    kind = "tokenizer of hub" if tokenizer else "hub"
    return place(cache_dir, f"{kind} {repo}{'@' * bool(revision)}{revision}", repo.rpartition("/")[2])


def ask_commit(repo: str, revision: str = "") -> str:
    """Return the commit that the hub has for a revision, without fetching it. Raises ModelError if the hub refuses,
    ConnectionError if it does not answer.
    """
    with _asking(repo):
        return str(_info(repo, revision).sha)


def _info(repo: str, revision: str) -> Any:
    from huggingface_hub import HfApi

    return HfApi().model_info(repo, revision=revision or None, timeout=_TIMEOUT, files_metadata=True)


def _download(repo: str, revision: str, progress: Progress, tokenizer: bool) -> Path:
    """Return the snapshot folder. Raises ModelError if the hub refuses, ConnectionError if it does not answer."""
    from huggingface_hub import snapshot_download

    with _asking(repo):
        info = _info(repo, revision)
        sizes = {str(file.rfilename): int(file.size or 0) for file in info.siblings or []}
        files = _text_parts(sizes) if tokenizer else _needed(repo, sizes)
        progress(f"fetching {repo} from the hub ({sum(files.values()) >> 20} MB where not fetched before)")
        # by its name, so that the hub's cache knows later what the name stood for
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=list(files)))


def _fetched(repo: str, revision: str) -> Path | None:
    """The snapshot of a revision in the hub's cache; None if there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, revision=revision or None, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


@contextlib.contextmanager
def _asking(repo: str) -> Iterator[None]:
    """Raise ModelError if the hub refuses, ConnectionError if it does not answer."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except HFValidationError as error:
        raise ModelError(f"{repo!r} is neither a local path nor a hub id: {error}") from None
    except HfHubHTTPError as error:
        if error.response.status_code < 500:
            why = " ".join(str(error).split())
            raise ModelError(f"{repo!r} is no local path, and the hub does not give it: {why}") from None
        raise ConnectionError(str(error)) from None
    except ModelError:
        raise
    except Exception as error:  # the HTTP library, and so its errors, differ between versions
        raise ConnectionError(f"{type(error).__name__}: {error}") from None


def _text_parts(files: dict[str, int]) -> dict[str, int]:
    """The files of this end at the top, and further chat templates."""
    top = {name for name in files if "/" not in name or name.rpartition("/")[0] == TEMPLATES}
    return {name: size for name, size in files.items() if name in top and name.endswith(_TEXT_PARTS)}


def _needed(repo: str, files: dict[str, int]) -> dict[str, int]:
    """Return the files of a repository that are needed: text files, and the weights in one format."""
    top = {name: size for name, size in files.items() if "/" not in name and not name.startswith("consolidated")}
    if name := chosen(top):
        suffix = ".safetensors" if name in SAFETENSORS else ".bin"
        weights = {name} if name.endswith(suffix) else {each for each in top if each.endswith(suffix)}
        return {each: top[each] for each in top if each in weights} | _text_parts(files)
    others: Any = sorted(name for name in top if name.endswith(".gguf")) or sorted(top)
    raise ModelError(f"{repo} has neither safetensors nor .bin weights (a GGUF file can be served by path): {others}")


def _point(link: Path, target: Path) -> None:
    """Make `link` point to `target` in one step, so that no process finds it missing."""
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=link.parent) as scratch:
            fresh = Path(scratch) / link.name
            fresh.symlink_to(target.resolve())
            os.replace(fresh, link)
    except OSError as error:
        raise ModelError(f"the model cache cannot be written: {error}") from error
