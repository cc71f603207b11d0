"""The weights of a decoder, fused as its products run, read from safetensors: only what is asked for is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import safe_open

from services.engine.families.spec import DecoderSpec
from services.engine.parallel.shard import Rows, Shard
from services.errors import ModelError


@dataclass(frozen=True, slots=True)
class Linear:
    """A product by `weight` [outputs, inputs], plus `bias` [outputs]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of one layer; norms are Linears whose weight is a vector."""

    attention_norm: Linear
    qkv: Linear  # queries, keys, values
    query_norm: torch.Tensor | None  # [head_dim]
    key_norm: torch.Tensor | None
    output: Linear
    mlp_norm: Linear
    up: Linear  # gated: gates, then what they let through
    down: Linear


class Tensors(Protocol):
    """Tensors by name. `bytes_read` counts what was asked for so far."""

    bytes_read: int

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, rows: Rows | None = None, columns: Rows | None = None) -> torch.Tensor:
        """A tensor, or these rows or columns of it, without reading the rest. Raises ModelError if it is absent."""
        ...

    def rows(self, name: str) -> int:
        """How many rows a tensor has. Raises ModelError if it is absent."""
        ...


class Checkpoint:
    """The tensors of a transformers folder with safetensors."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError for a folder without any."""
        index = folder / "model.safetensors.index.json"
        if index.exists():
            files: dict[str, str] = json.loads(index.read_text())["weight_map"]
            names = {name: folder / file for name, file in files.items()}
        else:
            file = folder / "model.safetensors"
            if not file.exists():
                raise ModelError(f"{folder} holds no causal language model with safetensors")
            with safe_open(file, framework="pt") as opened:
                names = dict.fromkeys(opened.keys(), file)
        self.bytes_read = 0
        self._files = names
        self._opened: dict[Path, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, rows: Rows | None = None, columns: Rows | None = None) -> torch.Tensor:
        """See Tensors."""
        part = self._slice(name)
        tensor: torch.Tensor = part[:, slice(*columns)] if columns else part[slice(*rows)] if rows else part[:]
        self.bytes_read += tensor.nbytes
        return tensor

    def rows(self, name: str) -> int:
        """See Tensors."""
        return int(self._slice(name).get_shape()[0])

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise ModelError(f"the weights have no tensor {name!r}")
        file = self._files[name]
        if file not in self._opened:
            self._opened[file] = safe_open(file, framework="pt")
        return self._opened[file].get_slice(name)


class Table(NamedTuple):
    """A shard's rows of an embedding, from row `first` on."""

    rows: torch.Tensor  # [rows, hidden]
    first: int


class DecoderWeights:
    """Reads the parts of a decoder, each when it is asked for, in the dtype in which it is stored: this shard's, and
    norms whole."""

    def __init__(self, spec: DecoderSpec, source: Path | Tensors, shard: Shard) -> None:
        """`source`: a folder with safetensors, or whatever has its tensors."""
        self._spec = spec
        self._file: Tensors = Checkpoint(source) if isinstance(source, Path) else source
        self._shard = shard
        self._layer: Callable[[int], LayerWeights] = self._gpt2_layer if spec.family == "gpt2" else self._llama_layer
        self._root = "transformer." if "transformer.wte.weight" in self._file else ""

    def layer(self, index: int) -> LayerWeights:
        """This shard's part of layer `index` of the model."""
        return self._layer(index)

    @property
    def bytes_read(self) -> int:
        """Of the checkpoint, so far."""
        return self._file.bytes_read

    def embedding(self) -> Table:
        """Of the vocabulary."""
        return self._table(self._embedding)

    @property
    def _embedding(self) -> str:
        return f"{self._root}wte.weight" if self._spec.family == "gpt2" else "model.embed_tokens.weight"

    @property
    def stored(self) -> torch.dtype:
        """The dtype of the weights in the checkpoint, by the embedding's."""
        return self._file.read(self._embedding, rows=(0, 1)).dtype

    def positions(self) -> Table:
        """Where they are learned."""
        return self._table(f"{self._root}wpe.weight")

    def last_norm(self) -> Linear:
        return self._norm(f"{self._root}ln_f" if self._spec.family == "gpt2" else "model.norm")

    @property
    def tied(self) -> bool:
        """Whether the vocabulary is the embedding."""
        return "lm_head.weight" not in self._file

    def vocabulary(self) -> torch.Tensor:
        """[vocab, hidden], of which this shard has some: the embedding where both are one."""
        return (self.embedding() if self.tied else self._table("lm_head.weight")).rows

    def _table(self, name: str) -> Table:
        rows = self._shard.of(self._file.rows(name))
        return Table(self._read(name, rows), rows[0])

    def _read(self, name: str, rows: Rows | None = None, columns: Rows | None = None) -> torch.Tensor:
        return self._file.read(name, rows, columns)

    def _norm(self, name: str) -> Linear:
        bias = f"{name}.bias"
        return Linear(self._read(f"{name}.weight"), self._read(bias) if bias in self._file else None)

    def _optional(self, name: str, rows: Rows | None = None) -> torch.Tensor | None:
        return self._read(name, rows) if name in self._file else None

    def _stacked(self, names: list[str], rows: list[Rows]) -> Linear:
        """Products of the same input, one below the other."""
        weights = [self._read(f"{name}.weight", part) for name, part in zip(names, rows, strict=True)]
        if f"{names[0]}.bias" not in self._file:
            return Linear(torch.cat(weights))
        return Linear(
            torch.cat(weights), torch.cat([self._read(f"{n}.bias", r) for n, r in zip(names, rows, strict=True)])
        )

    def _partial(self, name: str, columns: Rows) -> Linear:
        """A product of this shard's inputs; the bias counts once in the sum over shards."""
        bias = self._optional(f"{name}.bias") if self._shard.rank == 0 else None
        return Linear(self._read(f"{name}.weight", columns=columns), bias)

    def _heads(self, group: int = 1) -> Rows:
        """Of this shard's KV heads, or of the `group` query heads that each of them has."""
        begin, end = self._shard.of(self._spec.kv_heads)
        return begin * group * self._spec.head_dim, end * group * self._spec.head_dim

    def _llama_layer(self, index: int) -> LayerWeights:
        layer, spec = f"model.layers.{index}", self._spec
        queries, keys = self._heads(spec.group), self._heads()
        inner = self._shard.of(spec.intermediate)
        attention = [f"{layer}.self_attn.{name}_proj" for name in "qkv"]
        return LayerWeights(
            attention_norm=self._norm(f"{layer}.input_layernorm"),
            qkv=self._stacked(attention, [queries, keys, keys]),
            query_norm=self._optional(f"{layer}.self_attn.q_norm.weight"),
            key_norm=self._optional(f"{layer}.self_attn.k_norm.weight"),
            output=self._partial(f"{layer}.self_attn.o_proj", queries),
            mlp_norm=self._norm(f"{layer}.post_attention_layernorm"),
            up=self._stacked([f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"], [inner, inner]),
            down=self._partial(f"{layer}.mlp.down_proj", inner),
        )

    def _gpt2_layer(self, index: int) -> LayerWeights:
        """GPT-2 keeps its weights [inputs, outputs]."""
        layer, spec = f"{self._root}h.{index}", self._spec
        heads, inner = self._heads(), self._shard.of(spec.intermediate)
        thirds = [(third * spec.hidden + heads[0], third * spec.hidden + heads[1]) for third in range(3)]

        def columns(name: str, parts: list[Rows]) -> Linear:
            weights = [self._read(f"{name}.weight", columns=part).t() for part in parts]
            return Linear(torch.cat(weights), torch.cat([self._read(f"{name}.bias", part) for part in parts]))

        def rows(name: str, part: Rows) -> Linear:
            bias = self._read(f"{name}.bias") if self._shard.rank == 0 else None
            return Linear(self._read(f"{name}.weight", part).t(), bias)

        return LayerWeights(
            attention_norm=self._norm(f"{layer}.ln_1"),
            qkv=columns(f"{layer}.attn.c_attn", thirds),
            query_norm=None,
            key_norm=None,
            output=rows(f"{layer}.attn.c_proj", heads),
            mlp_norm=self._norm(f"{layer}.ln_2"),
            up=columns(f"{layer}.mlp.c_fc", [inner]),
            down=rows(f"{layer}.mlp.c_proj", inner),
        )
