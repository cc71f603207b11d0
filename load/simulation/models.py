"""Models as the simulator knows them: how much there is to read and to multiply."""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT = 2  # bytes of a weight, a key or an activation: fp16 in the paper, bf16 elsewhere


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder. Widths are counted in elements of a token in one layer."""

    name: str
    layers: int
    hidden: int
    layer_params: int  # of the linear operations of one layer
    query_width: int  # all query heads
    kv_width: int  # keys and values together
    vocabulary: int
    embeddings: int  # tables of [vocabulary, hidden]: 1 where input and output share theirs
    max_model_len: int

    @property
    def params(self) -> int:
        return self.layers * self.layer_params + self.embeddings * self.vocabulary * self.hidden

    @property
    def weight_bytes(self) -> int:
        return ELEMENT * self.params

    @property
    def slot_bytes(self) -> int:
        """What the keys and values of a token take, in all layers (a slot of the paper, section 4.2)."""
        return ELEMENT * self.kv_width * self.layers


def gpt(name: str, layers: int, hidden: int) -> Model:
    """GPT as the paper's section 2 has it: QKV, attention out and an MLP of four times the width; GPT-3's vocabulary.

    Sequences of 2,048 tokens (section 6, Models).
    """
    return Model(name, layers, hidden, 12 * hidden**2, hidden, 2 * hidden, 50_257, 1, 2048)


GPT_13B = gpt("13B", 40, 5_120)
GPT_101B = gpt("101B", 80, 10_240)
GPT_175B = gpt("175B", 96, 12_288)
GPT_341B = gpt("341B", 120, 15_360)

# Llama 2 70B (arXiv 2307.09288 and its config.json): 64 query heads over 8 of keys and values, MLP of 28,672.
LLAMA_70B = Model(
    "Llama 70B",
    layers=80,
    hidden=8192,
    layer_params=8192 * (8192 + 2 * 1024 + 8192 + 3 * 28_672),
    query_width=8192,
    kv_width=2 * 1024,
    vocabulary=32_000,
    embeddings=2,
    max_model_len=4096,
)
