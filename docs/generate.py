"""Writes docs/settings.md from the settings in the code.

python docs/generate.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args, get_origin

from services.settings.names import VLLM_FLAGS, VLLM_REFUSED
from services.settings.settings import FILE, Settings, sections

ROOT = Path(__file__).parents[1]


SETTINGS = f"""# Settings

Each setting has one name. For example, `max_batch_size` can be set by the flag `--max-batch-size 8` of `orca serve`,
the variable `ORCA_MAX_BATCH_SIZE=8`, or a line of a settings file. The first of these that names it applies:

1. the command line; `orca serve MODEL` is the same as `orca serve --model MODEL`,
2. a variable,
3. the file of `orca serve --config FILE`,
4. `{FILE}` in the current folder.

A settings file is TOML (`.toml`) or YAML (`.yaml`, `.yml`). It contains names of flags without the leading dashes, with
`-` or `_`: `max-batch-size: 8` in YAML, `max_batch_size = 8` in TOML. If a setting is unknown, out of range or
contradicts another, `orca serve` prints one line that names it and ends with status 2.

`orca chat`, `orca status` and `orca top` ask the server of `--url`, else the one at `host` and `port` if a variable or
file sets these, else the only one that runs on `data_dir`. If several run there, they name them and ask for `--url`.

All keys of `api_key` and `api_keys` are accepted. A key of `api_key` belongs to the tenant `default`, a key of
`api_keys` to the tenant that is named there. A key in both with another tenant in `api_keys` is an error.
`--api-key` accepts one or more keys and can be repeated; `ORCA_API_KEY` holds one. `orca chat`, `orca status` and
`orca top` send that key, or the key of their own `--api-key KEY`. A key may be given as its hash, `sha256:` and 64
hexadecimal digits. `api_keys_file` and `redis_url_file` hold secrets in files of their own: [security](security.md).
"""
VLLM_SAME = """
## Flags of vLLM

These flags of `vllm serve`, and the same names in a settings file, have the same meaning as in vLLM. So do `--model`,
`--served-model-name` (one name), `--host` (here 127.0.0.1 by default), `--port`, `--api-key`, `--dtype`,
`--block-size`, `--max-model-len`, `--allowed-origins`, `--allow-credentials`, `--allowed-methods`, `--allowed-headers`,
`--ssl-certfile`, `--ssl-keyfile` and `--config`. Numbers are plain (no `8k`, no `auto`), and `--dtype` accepts
`float16` and `float32`, not `half` and `float`.

| vLLM | setting |
|---|---|
"""
VLLM_OTHER = """
These are refused, because their meaning differs or there is nothing to set:

| vLLM | instead |
|---|---|
"""


def settings() -> str:
    """docs/settings.md"""
    tables = "".join(_section(section, names) for section, names in sections().items())
    same = "".join(f"| `{flag}` | `{name}` |\n" for flag, name in VLLM_FLAGS.items())
    other = "".join(f"| `{flag}` | {_with_code(instead)} |\n" for flag, instead in VLLM_REFUSED.items())
    return SETTINGS + tables + VLLM_SAME + same + VLLM_OTHER + other


def _with_code(text: str) -> str:
    return re.sub(r"--[a-z-]+", r"`\g<0>`", text)


def _section(section: str, names: list[str]) -> str:
    rows = "".join(f"| `{name}` | {_default(name)} | {_meaning(name)} |\n" for name in names)
    return f"\n## {section}\n\n| setting | default | what it is |\n|---|---|---|\n{rows}"


def _default(name: str) -> str:
    if name in ("data_dir", "cache_dir"):
        return f"`{'~/.local/share/orca' if name == 'data_dir' else '~/.cache/orca'}`"
    value = Settings.model_fields[name].default
    return f"`{value}`" if str(value) and value not in ((), {}) else "none"


def _meaning(name: str) -> str:
    field = Settings.model_fields[name]
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    listed = " (" + ", ".join(f"`{choice}`" for choice in choices) + ")" if choices else ""
    return f"{field.description}{listed}"


if __name__ == "__main__":
    (ROOT / "docs" / "settings.md").write_text(settings())
