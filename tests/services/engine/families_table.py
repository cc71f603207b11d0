"""The tables of docs/models.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import safe_open
from tiny_families import small_config
from transformers import AutoConfig
from unserved_families import REFUSED

from services.engine.backends.stock.decoder import StockDecoder
from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.families.registry import ENCODERS, FAMILIES, spec_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"
BEGIN, END = "<!-- made by `make families` -->\n", "<!-- end -->\n"


def features(engine: Engine, folder: Path) -> str:
    """The row of a family: its path and what its tiny model has, as in the table's head."""
    config = load_config(folder)
    decoder = engine.decoder
    assert isinstance(decoder, StockDecoder)
    fields = config.to_dict()
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        names = list(weights.keys())
    found = []
    if any(mask.window for mask in decoder.masks):
        found.append("sliding windows")
    if any(mask.chunk for mask in decoder.masks):
        found.append("chunks")
    if decoder.states:
        found.append("states")
    if fields.get("attn_logit_softcapping"):
        found.append("soft caps")
    if any("sink" in name for name in names):
        found.append("sinks")
    if any("experts" in name or "moe" in name for name in names):
        found.append("experts")
    if fields.get("num_kv_shared_layers"):
        found.append("shared keys")
    if fields.get("kv_lora_rank"):
        found.append("latent keys")
    if "longrope" in str(fields.get("rope_parameters")):
        found.append("`longrope`")
    return f"{backend(config)} | {', '.join(found)}"


def backend(config: Any) -> str:
    """Which of the backends run a model of this config."""
    spec = spec_of(config)
    return "stock" if not spec else "CPU" if spec.lacks_on_cuda else "CPU and CUDA"


def on_the_cpu_alone() -> dict[str, str]:
    """The families that the CPU backend runs and the CUDA backend does not, and what that lacks."""
    specs = {family: spec_of(small_config(family)) for family in FAMILIES}
    specs |= {family: spec_of(AutoConfig.for_model(family), encoder=True) for family in ENCODERS}
    return {family: spec.lacks_on_cuda for family, spec in specs.items() if spec and spec.lacks_on_cuda}


def written(document: str, rows: dict[str, str]) -> str:
    """The document with its tables made anew: of families that are served, of those that a GPU runs on transformers'
    layers, and of those that are refused."""
    served = ["| family | backend | features |", "|---|---|---|"]
    served += [f"| `{family}` | {rows[family]} |" for family in sorted(rows)]
    lacking = ["| family | what the CUDA backend lacks |", "|---|---|"]
    lacking += [f"| `{family}` | {what} |" for family, what in sorted(on_the_cpu_alone().items())]
    refused = ["| family | why |", "|---|---|"]
    refused += [f"| `{family}` | {named} |" for family, (_, named) in sorted(REFUSED.items())]
    head, *parts = document.split(BEGIN)
    assert len(parts) == 3, f"{len(parts)} tables"
    made = [
        "\n".join(table) + f"\n\n{END}" + part.partition(END)[2]
        for table, part in zip((served, lacking, refused), parts, strict=True)
    ]
    return f"{BEGIN}\n".join([head, *made])
