"""Tiny random models that make vectors, with the files of sentence-transformers, and the vectors that transformers'
own layers give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_models import make_tiny_model


def make_embedder(
    folder: Path, family: str = "qwen3", method: str = "lasttoken", normalize: bool = True, **more: Any
) -> Path:
    """A tiny decoder with a module of pooling."""
    make_tiny_model(folder, family, **more)
    write_modules(folder, method, normalize)
    return folder


def write_modules(folder: Path, method: str, normalize: bool = True, dense: int = 0) -> None:
    """Write the files of sentence-transformers. `dense`: outputs of a layer behind pooling; 0: there is none."""
    kinds = ["Transformer", "Pooling", *["Dense"] * bool(dense), *["Normalize"] * normalize]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name == method for name in ("cls_token", "mean_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    if dense:
        _write_dense(folder / "2_Dense", dense)


def _write_dense(folder: Path, outputs: int) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    config = {"in_features": 64, "out_features": outputs, "bias": True}
    (folder / "config.json").write_text(
        json.dumps({**config, "activation_function": "torch.nn.modules.activation.Tanh"})
    )
    drawn = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(outputs, 64, generator=drawn) / 8, torch.randn(outputs, generator=drawn)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "model.safetensors")


def expected_vectors(folder: Path, texts: list[list[int]]) -> list[list[float]]:
    """The vectors of texts (token ids), each computed alone by transformers' layers in float32, as modules.json
    says."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    modes = json.loads((folder / "1_Pooling" / "config.json").read_text())
    kinds = [module["type"].rpartition(".")[2] for module in json.loads((folder / "modules.json").read_text())]
    found = []
    for ids in texts:
        with torch.inference_mode():
            hidden = model(torch.tensor([ids])).last_hidden_state[0]
        pick = {"mean_tokens": hidden.mean(0), "cls_token": hidden[0], "lasttoken": hidden[-1]}
        vector = next(pick[name] for name in pick if modes[f"pooling_mode_{name}"])
        if "Dense" in kinds:
            dense = load_file(folder / "2_Dense" / "model.safetensors")
            vector = torch.tanh(dense["linear.weight"] @ vector + dense["linear.bias"])
        if "Normalize" in kinds:
            vector = torch.nn.functional.normalize(vector, dim=0)
        found.append(vector.tolist())
    return found


_ENCODER = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {**_ENCODER, "layer_norm_eps": 1e-12},
    "roberta": {**_ENCODER, "pad_token_id": 1, "max_position_embeddings": 130, "type_vocab_size": 1},
    "xlm-roberta": {**_ENCODER, "pad_token_id": 1, "max_position_embeddings": 130, "type_vocab_size": 1},
    "distilbert": {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128, "max_position_embeddings": 128},
    "modernbert": {
        **_ENCODER,
        "local_attention": 8,
        "global_attn_every_n_layers": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    "nomic_bert": {**_ENCODER, "head_dim": 16},
    "gemma3_text": {
        **_ENCODER,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "use_bidirectional_attention": True,
    },
}


def make_encoder(folder: Path, family: str, method: str = "mean_tokens", labels: int = 0, **more: Any) -> Path:
    """A tiny random encoder, or with `labels` a classifier of so many classes."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, vocab_size=320, **{**ENCODERS[family], "initializer_range": 0.2, **more})
        if labels:
            config.num_labels = labels
        auto: Any = AutoModelForSequenceClassification if labels else AutoModel
        model = auto.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1 or name.endswith("bias"):
                    parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    if not labels:
        write_modules(folder, method)
    return folder
