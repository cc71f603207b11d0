"""Checkpoints that tools write for `make tools`: which tool in which version, from which model, with which options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that writes quantized checkpoints; for the fields see Client of tests/clients. `script` lies in
    `scripts/`."""

    name: str
    script: str
    packages: tuple[str, ...]
    overrides: tuple[str, ...]
    kind: Literal["python"] = "python"

    @property
    def described(self) -> str:
        return " ".join(self.packages[0].split("=="))


# the build of torch that Orca has, and nothing beside it that only a GPU needs
TORCH = ("torch==2.13.0", *(f"{name} ; python_version < '3'" for name in ("torchvision", "torchaudio", "triton")))
GPTQMODEL = Tool("gptqmodel", "gptqmodel_write.py", ("gptqmodel==7.7.0", "transformers==5.23.0"), TORCH)
LLM_COMPRESSOR = Tool("llmcompressor", "llm_compressor_write.py", ("llmcompressor==0.14.0.1",), TORCH)
# it imports requests, which it does not name, and was tested with transformers before 5.15
MODELOPT = Tool(
    "modelopt", "modelopt_write.py", ("nvidia-modelopt==0.47.0", "transformers==5.14.1", "requests==2.34.2"), TORCH
)

BITSANDBYTES = Tool(
    "bitsandbytes",
    "bitsandbytes_write.py",
    ("bitsandbytes==0.50.2", "transformers==5.23.0", "accelerate==1.15.0"),
    TORCH,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One checkpoint. `options`: what the tool's script is told. `refused`: what the error says, if Orca does not serve
    it."""

    tool: Tool
    model: str
    label: str
    options: Mapping[str, Any] = field(hash=False)
    refused: str = ""

    @property
    def name(self) -> str:
        words = f"{self.tool.name} {self.model} {self.label}".replace("`", "")
        return "-".join("".join(each if each.isalnum() or each == "_" else " " for each in words).split())


def gptq(model: str, label: str, refused: str = "", **options: Any) -> Case:
    return Case(GPTQMODEL, model, f"GPTQ, {label}", {"bits": 4, "group_size": 32, **options}, refused)


def awq(model: str, label: str, **options: Any) -> Case:
    own = {"bits": 4, "group_size": 32, "sym": False, "method": "awq", "format": "gemm"}
    return Case(GPTQMODEL, model, f"AWQ, {label}", {**own, **options})


def compressed(
    model: str, label: str, scheme: str = "", by: str = "Quantization", refused: str = "", **arguments: Any
) -> Case:
    """`by`: the modifier; `arguments`: what it is told beyond a scheme."""
    schemes = {"targets": "Linear", "scheme": scheme} if scheme else {}
    ignored = {"ignore": ["lm_head", "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$"]}
    options = {"modifier": by, "arguments": {**ignored, **schemes, **arguments}}
    return Case(LLM_COMPRESSOR, model, label, options, refused)


def modelopt(model: str, label: str, config: str, refused: str = "", **options: Any) -> Case:
    """`config`: the name of one of the tool's; `more`: what is added to it."""
    return Case(MODELOPT, model, label, {"config": config, **options}, refused)


def bitsandbytes(model: str, label: str, refused: str = "", **options: Any) -> Case:
    return Case(BITSANDBYTES, model, label, options, refused)


CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
BY_TOKEN = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "token", "dynamic": True}
INT8_ZEROS = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel"}
EIGHT = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FOUR = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FLOAT8 = {"num_bits": 8, "type": "float"}
NVFP4 = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
    "dynamic": False,
    "scale_dtype": "torch.float8_e4m3fn",
    "zp_dtype": "torch.float8_e4m3fn",
}
MIXED = {
    "eight": {"targets": ["re:.*down_proj"], "weights": EIGHT},
    "four": {"targets": ["re:.*self_attn.*", "re:.*gate_proj", "re:.*up_proj"], "weights": FOUR},
}

FLOATS = {
    "eight": {"targets": ["re:.*self_attn.*"], "weights": {**FLOAT8, "strategy": "channel", "symmetric": True}},
    "four": {"targets": ["re:.*mlp.*_proj"], "weights": NVFP4},
}

BY_NAME = ["re:.*lm_head", "re:.*down_proj", "re:.*layers.0.self.*"]

NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
# of ModelOpt
KEYS_AND_VALUES = [{"quantizer_name": "*[kv]_bmm_quantizer", "cfg": {"num_bits": [4, 3], "axis": None}}]
NO_LAYER = [{"quantizer_name": "*layers.0.*", "enable": False}]
MIXED_FLOATS = [
    {"quantizer_name": f"*self_attn.*_proj.{each}_quantizer", "cfg": {"num_bits": [4, 3], "axis": None}}
    for each in ("weight", "input")
]

CASES = (
    gptq("llama", "4 bits"),
    gptq("llama", "4 bits, zeros, act-order", sym=False, desc_act=True),
    gptq("llama", "2 bits, zeros", bits=2, sym=False),
    gptq("qwen3", "4 bits in groups of 128", group_size=128),
    gptq("qwen3", "4 bits in groups of 128, act-order", group_size=128, desc_act=True),
    gptq("qwen3", "4 bits, zeros", sym=False, desc_act=False),
    gptq("qwen3", "4 bits, zeros, `gptq_v2`", sym=False, format="gptq_v2"),
    gptq("qwen3", "8 bits", bits=8),
    gptq("qwen3", "8 bits by output", bits=8, group_size=-1, desc_act=False, act_group_aware=False),
    gptq("qwen3", "8 bits, zeros", bits=8, sym=False),
    gptq("qwen3", "2 bits", bits=2),
    gptq("qwen3", "2 bits, zeros, act-order", bits=2, sym=False, desc_act=True),
    gptq("qwen3", "3 bits", bits=3),
    gptq("qwen3", "3 bits, zeros", bits=3, sym=False),
    gptq("qwen3", "`dynamic` leaves modules out", dynamic={"-:.*down_proj.*": {}}),
    gptq("qwen3", "`dynamic` leaves a layer out", dynamic={"-:.*layers\\.0\\..*": {}}),
    gptq("qwen3", "`dynamic` with other groups", group_size=128, dynamic={"+:.*down_proj.*": {"group_size": 32}}),
    gptq("qwen3", "`dynamic` with other bits", dynamic={"+:.*down_proj.*": {"bits": 8, "group_size": 64}}),
    gptq("qwen3", "`lm_head` too", lm_head=True),
    gptq("qwen3_moe", "4 bits"),
    gptq("mixtral", "4 bits"),
    awq("llama", "zeros"),
    awq("qwen3", "zeros, groups of 128", group_size=128),
    awq("qwen3", "no zeros", sym=True),
    awq("qwen3_moe", "zeros"),
    awq("mixtral", "zeros"),
    compressed("llama", "W4A16", "W4A16"),
    compressed("llama", "FP8, dynamic", "FP8_DYNAMIC"),
    compressed("qwen3", "W4A16", "W4A16"),
    compressed("qwen3", "W4A16, zeros", "W4A16_ASYM"),
    compressed("qwen3", "W4A16 by GPTQ", "W4A16", "GPTQ"),
    compressed("qwen3", "W4A16 by GPTQ, `actorder` `weight`", "W4A16", "GPTQ", actorder="weight"),
    compressed("qwen3", "W8A16", "W8A16"),
    compressed("qwen3", "W8A8", "W8A8"),
    compressed("qwen3", "W4A8", "W4A8"),
    compressed(
        "qwen3",
        "int8, zeros",
        config_groups={"all": {"targets": ["Linear"], "weights": INT8_ZEROS, "input_activations": BY_TOKEN}},
    ),
    compressed("qwen3", "FP8, static", "FP8"),
    compressed("qwen3", "FP8, dynamic", "FP8_DYNAMIC"),
    compressed("qwen3", "FP8, blocks", "FP8_BLOCK"),
    compressed("qwen3", "FP8, `kv_cache_scheme`", "FP8", kv_cache_scheme=CACHE),
    compressed(
        "qwen3",
        "W4A16, `ignore` with `re:`",
        "W4A16",
        ignore=["re:.*lm_head", "re:.*down_proj", "re:.*layers.0.self.*"],
    ),
    compressed("qwen3", "4 and 8 bits", config_groups=MIXED),
    compressed("qwen3", "W4A16, `lm_head` too", "W4A16", ignore=[]),
    compressed("qwen3", "NVFP4", "NVFP4A16"),
    compressed("qwen3", "NVFP4, activations too", "NVFP4"),
    compressed("qwen3", "MXFP4", "MXFP4A16"),
    compressed("qwen3", "MXFP4, activations too", "MXFP4"),
    compressed("qwen3", "NVFP4 and FP8", config_groups=FLOATS),
    compressed("qwen3_tied", "W4A16, `lm_head` too", "W4A16", ignore=[]),
    compressed("qwen3_moe", "W4A16", "W4A16"),
    compressed("qwen3_moe", "FP8, dynamic", "FP8_DYNAMIC"),
    compressed("qwen3_moe", "NVFP4", "NVFP4A16"),
    compressed("qwen3_moe", "MXFP4", "MXFP4A16"),
    compressed("mixtral", "W4A16", "W4A16"),
    compressed("mixtral", "FP8, dynamic", "FP8_DYNAMIC"),
    modelopt("llama", "FP8", "FP8_DEFAULT_CFG"),
    modelopt("llama", "NVFP4", "NVFP4_DEFAULT_CFG"),
    modelopt("qwen3", "FP8", "FP8_DEFAULT_CFG"),
    modelopt("qwen3", "FP8, scales of the KV cache", "FP8_DEFAULT_CFG", more=KEYS_AND_VALUES),
    modelopt("qwen3", "FP8, `hf_quant_config.json` alone", "FP8_DEFAULT_CFG", older=True),
    modelopt("qwen3", "FP8, a layer left out", "FP8_DEFAULT_CFG", more=NO_LAYER),
    modelopt("qwen3", "FP8 by output", "FP8_PER_CHANNEL_PER_TOKEN_CFG"),
    modelopt("qwen3", "FP8, blocks", "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"),
    modelopt("qwen3", "NVFP4", "NVFP4_DEFAULT_CFG"),
    modelopt("qwen3", "NVFP4, `hf_quant_config.json` alone", "NVFP4_DEFAULT_CFG", older=True),
    modelopt("qwen3", "NVFP4 of weights alone", "W4A16_NVFP4_CFG"),
    modelopt("qwen3", "NVFP4 and FP8", "NVFP4_DEFAULT_CFG", more=MIXED_FLOATS),
    modelopt("qwen3", "MXFP8", "MXFP8_DEFAULT_CFG"),
    modelopt("qwen3", "int8", "INT8_WEIGHT_ONLY_CFG", "modelopt with quant_algo=W8A16 is not served"),
    modelopt("qwen3_moe", "FP8", "FP8_DEFAULT_CFG"),
    modelopt("qwen3_moe", "NVFP4", "NVFP4_DEFAULT_CFG"),
    bitsandbytes("llama", "NF4", **NF4),
    bitsandbytes("qwen3", "NF4", **NF4),
    bitsandbytes("qwen3", "NF4, scales too", **NF4, bnb_4bit_use_double_quant=True),
    bitsandbytes("qwen3", "NF4, modules left out", **NF4, llm_int8_skip_modules=["lm_head", "down_proj"]),
    bitsandbytes("qwen3", "FP4", "bitsandbytes with bnb_4bit_quant_type=fp4 is not served", load_in_4bit=True),
    bitsandbytes("qwen3", "int8", load_in_8bit=True),
)
