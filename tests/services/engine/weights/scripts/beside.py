"""What the tools' scripts share. A script runs in the tool's environment. It is told a folder of models, a folder to
write to and a list of cases, and writes for each the checkpoint and, beside it, what the tool computes with it."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

TEXTS = [
    "The capital of France is Paris, a city on the river Seine. It is known for museums and its food. " * 4,
    "def add(a, b):\n    return a + b\n\nclass Stack:\n    def push(self, item):\n        self.items.append(item)\n"
    * 4,
    "In 1905 Einstein published four papers, on light, motion, relativity, and mass and energy, in one year. " * 4,
    "To make bread, mix flour, water, salt and yeast, knead the dough, let it rise and bake it in a hot oven. " * 4,
] * 8


def write_all(write: Callable[[Path, dict[str, Any], Path], Any]) -> None:
    """Run the cases of the command line. `write(model, options, checkpoint)` writes a checkpoint, and returns the
    tool's model and its weights by name."""
    torch.set_num_threads(2)
    told = json.loads(Path(sys.argv[1]).read_text())
    for case in told["cases"]:
        place, problem = Path(told["folder"]) / case["name"], ""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            model, weights = write(Path(told["models"]) / case["model"], case["options"], place / "checkpoint")
            found = {f"weight {name}": weight.detach().float() for name, weight in weights.items()}
            found |= _outputs(model, torch.tensor([told["prompt"]]))
            save_file({name: each.contiguous().clone() for name, each in found.items()}, place / "computed.safetensors")
        except Exception as error:
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
        (place / "written.json").write_text(json.dumps({"problem": problem}))
        print(f"{case['name']}: {problem or 'written'}", file=sys.stderr, flush=True)


def _outputs(model: Any, prompt: torch.Tensor) -> dict[str, torch.Tensor]:
    """The logits of the prompt's tokens, and those of the routers."""
    with torch.no_grad(), _routers(model) as found:
        logits = model(prompt).logits[0].float()
    return {"logits": logits, **found}


@contextlib.contextmanager
def _routers(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    found: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            logits = output[0] if isinstance(output, tuple) else output
            found[f"router {name}"] = logits.detach().float().reshape(-1, logits.shape[-1])

        return hook

    gates = [(name, module) for name, module in model.named_modules() if name.endswith((".mlp.gate", "_moe.gate"))]
    hooks = [module.register_forward_hook(keep(name)) for name, module in gates]
    yield found
    for hook in hooks:
        hook.remove()
