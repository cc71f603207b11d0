"""The tables of docs/models.md."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from unserved_families import REFUSED

from services.engine.backends.stock.decoder import StockDecoder
from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.families.registry import spec_of

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
    spec = spec_of(config)
    path = "stock" if not spec else "CPU and CUDA" if spec.runs_on_cuda else "CPU"
    return f"{path} | {', '.join(found)}"


def written(document: str, rows: dict[str, str]) -> str:
    """The document with its two tables made anew: of families that are served, and of those that are refused."""
    served = ["| family | backend | features |", "|---|---|---|"]
    served += [f"| `{family}` | {rows[family]} |" for family in sorted(rows)]
    refused = ["| family | why |", "|---|---|"]
    refused += [f"| `{family}` | {named} |" for family, (_, named) in sorted(REFUSED.items())]
    head, *parts = document.split(BEGIN)
    assert len(parts) == 2, f"{len(parts)} tables"
    made = [
        "\n".join(table) + f"\n\n{END}" + part.partition(END)[2]
        for table, part in zip((served, refused), parts, strict=True)
    ]
    return f"{BEGIN}\n".join([head, *made])
