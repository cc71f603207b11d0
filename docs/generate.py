"""Writes docs/settings.md from the settings in the code, the tables of metrics and alerts in other documents, and the
alerts as an object of Kubernetes.

python docs/generate.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args, get_origin

import yaml

from services.metrics import declared
from services.settings.gone import GONE
from services.settings.names import VLLM_FLAGS, VLLM_REFUSED
from services.settings.settings import FILE, Settings, sections

ROOT = Path(__file__).parents[1]
OBSERVABILITY, OPERATIONS = ROOT / "docs" / "observability.md", ROOT / "docs" / "operations.md"
ALERTS = ROOT / "deploy" / "monitoring" / "alerts.yml"
PROMETHEUS_RULE = ALERTS.with_name("prometheusrule.yaml")


SETTINGS = f"""# Settings

Each setting has one name. For example, `max_batch_size` can be set by the flag `--max-batch-size 8` of `orca serve`,
the variable `ORCA_MAX_BATCH_SIZE=8`, or a line of a settings file. The first of these that names it applies:

1. the command line; `orca serve MODEL` is the same as `orca serve --model MODEL`,
2. a variable,
3. the file of `orca serve --config FILE`,
4. `{FILE}` in the current folder.

A settings file is TOML (`.toml`) or YAML (`.yaml`, `.yml`). It contains names of flags without the leading dashes, with
`-` or `_`: `max-batch-size: 8` in YAML, `max_batch_size = 8` in TOML. If a setting is unknown, out of range or
contradicts another, or if what it names on this machine is absent or broken (a chat template, a tokenizer's folder, a
driver for GPUs, a part of the model), or does not fit the model (another quantization method, a longer `max_model_len`,
a tokenizer with too many ids, a parser of other calls), `orca serve` prints one line that names it and ends with status
2. Everything else ends with status 1: a model that its engine refuses when it loads it, a port in use, a hub or a pool
that does not answer.

`orca chat`, `orca status` and `orca top` ask the server of `--url`, else the one at `host` and `port` if a variable or
file sets these, else the only one that runs on `data_dir`. If several run there, they name them and ask for `--url`.

All keys of `api_key` and `api_keys` are accepted. A key of `api_key` belongs to the tenant `default`, a key of
`api_keys` to the tenant that is named there. A key in both with another tenant in `api_keys` is an error.
`--api-key` accepts one or more keys and can be repeated; `ORCA_API_KEY` holds one. `orca chat`, `orca status` and
`orca top` send that key, or the key of their own `--api-key KEY`. A key may be given as its hash, `sha256:` and 64
hexadecimal digits. `api_keys_file`, and `redis_url` and `operator_api_key` if they are names of files, keep secrets in
files of their own: [security](security.md).
"""
VLLM_SAME = """
## Flags of vLLM

These flags of `vllm serve`, and the same names in a settings file, have the same meaning as in vLLM. So do `--model`,
`--served-model-name`, `--host` (here 127.0.0.1 by default), `--port`, `--api-key`, `--dtype`,
`--block-size`, `--max-model-len`, `--revision` (here a part of `model`), `--tokenizer`, `--chat-template`,
`--generation-config`, `--override-generation-config`, `--enable-lora`, `--lora-modules`, `--max-lora-rank` (here 256 by
default), `--allowed-origins`, `--ssl-certfile`, `--ssl-keyfile` and `--config`. Numbers are plain (no `8k`, no `auto`),
and `--dtype` accepts `float16` and `float32`, not `half` and `float`.

| vLLM | setting |
|---|---|
"""
VLLM_OTHER = """
These are refused, because their meaning differs or there is nothing to set:

| vLLM | instead |
|---|---|
"""
NO_SETTINGS = """
## Names that are no settings any more

Each is accepted on the command line, as a variable and in a file, with one warning in the log: until the next release,
those of vLLM (`allow_credentials`, `allowed_methods`, `allowed_headers`) after it too.

"""


def settings() -> str:
    """docs/settings.md"""
    tables = "".join(_section(section, names) for section, names in sections().items())
    same = "".join(f"| `{flag}` | `{name}` |\n" for flag, name in VLLM_FLAGS.items())
    other = "".join(f"| `{flag}` | {_with_code(instead)} |\n" for flag, instead in VLLM_REFUSED.items())
    gone = "".join(f"- `{name}`: {_with_names(one.instead)}.\n" for name, one in GONE.items())
    return SETTINGS + tables + VLLM_SAME + same + VLLM_OTHER + other + NO_SETTINGS + gone


def observability() -> str:
    """docs/observability.md with its table of metrics made anew."""
    return _with_table(OBSERVABILITY, "metrics", _metrics())


def operations() -> str:
    """docs/operations.md with its table of alerts made anew."""
    return _with_table(OPERATIONS, "alerts", _alerts())


def prometheus_rule() -> str:
    """The rules of alerts.yml as an object for the Prometheus Operator."""
    rules = ALERTS.read_text()
    groups = "".join(f"  {line}" for line in rules[rules.index("groups:") :].splitlines(keepends=True))
    head = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: orca\nspec:\n"
    return f"# Written by docs/generate.py from {ALERTS.name}.\n{head}{groups}"


def _with_table(document: Path, name: str, rows: str) -> str:
    """The text of a document with `rows` between the marks of that name."""
    text = document.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    return text[: text.index(begin) + len(begin)] + "\n" + rows + "\n" + text[text.index(end) :]


def _metrics() -> str:
    """All metrics under the names of their samples, each but the first column's `model_name` with its labels."""
    rows = [(f"{name}_total", "counter", c.labels, c.help) for name, c in declared.COUNTERS.items()]
    rows += [(name, "histogram", h.labels, h.help) for name, h in declared.HISTOGRAMS.items()]
    rows += [(name, "gauge", (), text) for name, text in declared.POOL_GAUGES.items()]
    seats = (*declared.SEAT_GAUGES.values(), *declared.OPTIONAL_GAUGES.values())
    rows += [(name, "gauge", declared.ENGINE, text) for name, text in seats]
    rows += [(name, "gauge", declared.ENGINE, text) for name, text in declared.FIGURES.items()]
    rows += [(name, "gauge", ("…_lora_adapters", "max_lora"), text) for name, text in declared.INFOS.items()]
    rows += [(name, "gauge", ("gateway",), text) for name, text in declared.GATEWAY_GAUGES.values()]
    rows += [(f"{name}_total", "counter", ("gateway",), text) for name, text in declared.GATEWAY_COUNTERS.values()]
    cells = (f"| `{name}` | {kind} | {', '.join(labels)} | {text} |\n" for name, kind, labels, text in rows)
    return "| metric | kind | labels | what it is |\n|---|---|---|---|\n" + "".join(cells)


def _alerts() -> str:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    rows = (
        f"| `{rule['alert']}` | {rule['labels']['severity']} | "
        + " | ".join(rule["annotations"][part] for part in ("meaning", "look", "action"))
        + " |\n"
        for rule in rules
    )
    head = "| alert | severity | what it means | what to look at | what to do |\n|---|---|---|---|---|\n"
    return head + "".join(rows)


def _with_code(text: str) -> str:
    return re.sub(r"--[a-z-]+", r"`\g<0>`", text)


def _with_names(text: str) -> str:
    """The text with code marks around names that have an underscore, and what they are set to."""
    return re.sub(r"\b[a-z]+_[a-z_]+\b|order=priority", r"`\g<0>`", text)


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
    OBSERVABILITY.write_text(observability())
    OPERATIONS.write_text(operations())
    PROMETHEUS_RULE.write_text(prometheus_rule())
