"""gptqmodel's kernels, in a process with packages of their own; see load/bench/drivers/of_gptqmodel.py."""

from __future__ import annotations

from pathlib import Path

import torch

from load.bench.drivers.process import Process
from load.bench.engine.quantized_products.cases import Case
from load.bench.engine.quantized_products.ways import copies
from services.engine.families.quantized import Weight


class Driven:
    """A Runner whose kernel runs in the driver's process. Tensors go through files in `folder`."""

    def __init__(self, process: Process, kernel: str, case: Case, folder: Path, cache: int) -> None:
        self._process, self._kernel, self._folder = process, kernel, folder
        weight = case.quantized("GPTQ")
        self.weight: Weight = weight
        torch.save({"codes": weight.codes, "scales": weight.scales}, folder / "weights")
        size = weight.codes.numel() // 2
        asked = {"kernel": kernel, "weights": str(folder / "weights"), "group": weight.group}
        self.bytes = int(process.ask(asked | {"copies": copies(size, cache)}))

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """See Runner."""
        self._ask(rows, 0.0, "product")
        found: torch.Tensor = torch.load(self._folder / "product")
        return found

    def seconds(self, rows: torch.Tensor, window: float) -> float:
        """See Runner."""
        return self._ask(rows, window, "")

    def _ask(self, rows: torch.Tensor, window: float, to: str) -> float:
        torch.save(rows.to(torch.bfloat16), self._folder / "rows")
        asked = {"run": self._kernel, "rows": str(self._folder / "rows"), "window": window}
        return float(self._process.ask(asked | ({"to": str(self._folder / to)} if to else {})))
