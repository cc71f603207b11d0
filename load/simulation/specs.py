"""GPUs and models as the simulator knows them.

The figures of a GPU are what it reaches, not what its data sheet promises; each has its source:

- [A100]: NVIDIA's data sheet of the SXM board. Memory is counted in GiB, as the driver does.
- [Azure]: ND96asr A100 v4 (the paper's machine, section 6): an adapter of 200 Gb/s for each GPU.
- [MAMF]: "Maximum achievable matmul FLOPS" in S. Bekman, Machine Learning Engineering
  (github.com/stas00/ml-engineering, compute/accelerator): A100 SXM 267.9 TFLOP/s of bf16.
- [Calculon]: M. Isaev et al., Calculon, SC '23 (github.com/calculon-ai/calculon, systems/a100_80e.json): an operation
  that moves 100 MB reaches 0.90 of the memory's peak of an A100, smaller ones less; NVLink reaches 0.65 of 300 GB/s on
  an A100; a network adapter 0.9.
- [NCCL]: the cost model in NCCL's own source (graph/tuning.cc, baseLatencies, hwLatencies, llMaxBws; ring on NVLink).
- [vLLM]: its default `gpu_memory_utilization` of 0.9: weights and KV blocks together; the rest is for activations.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
USABLE_MEMORY = 0.9  # [vLLM]
HAND_OVER_LATENCY = 8.4e-6 + 14.0e-6  # [NCCL]: Simple, one step over the network
ADAPTER_EFFICIENCY = 0.9  # [Calculon]


@dataclass(frozen=True, slots=True)
class RingProtocol:
    """A protocol with which NCCL runs a ring over NVLink: seconds to start, seconds per step, bytes/s of each GPU."""

    base: float
    step: float
    bandwidth: float

    def all_reduce(self, size: float, ranks: int) -> float:
        """Seconds to sum `size` bytes over `ranks` GPUs: 2 (ranks - 1) steps, each with size / ranks bytes."""
        steps = 2 * (ranks - 1)
        return self.base + steps * (self.step + size / ranks / self.bandwidth)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Bytes, bytes/s and 16-bit floating-point operations/s that a GPU really reaches; only `bandwidth` is the peak of
    the data sheet. An operation reaches a share of it by the bytes that it reads: `reads`, (bytes at least, share), the
    largest first."""

    name: str
    memory: float
    bandwidth: float
    rate: float
    rings: tuple[RingProtocol, ...]
    adapter: float
    reads: tuple[tuple[float, float], ...]

    def read_rate(self, size: float) -> float:
        """The bytes/s that an operation reads which reads `size` bytes."""
        return self.bandwidth * next(share for least, share in self.reads if size >= least)

    def all_reduce(self, size: float, ranks: int) -> float:
        """Seconds of the faster protocol, which is the one that NCCL chooses."""
        return min(ring.all_reduce(size, ranks) for ring in self.rings) if ranks > 1 else 0.0

    def hand_over(self, size: float) -> float:
        """Seconds to send `size` bytes from each GPU of a stage to its peer in the next stage."""
        return HAND_OVER_LATENCY + size / self.adapter


A100_40GB = Gpu(
    "A100-40GB",
    memory=40 * GIB * USABLE_MEMORY,
    bandwidth=1555e9,  # [A100]
    rate=267.9e12,  # [MAMF]
    rings=(
        RingProtocol(6.6e-6, 0.6e-6, 87.7e9),  # [NCCL]: LL, Ampere, one node
        RingProtocol(8.4e-6, 3.4e-6, 300e9 * 0.65),  # [NCCL]: Simple; [Calculon]
    ),
    adapter=25e9 * ADAPTER_EFFICIENCY,  # [Azure]
    reads=((100e6, 0.90), (10e6, 0.75), (1e6, 0.6), (0.0, 0.3)),  # [Calculon]
)

ELEMENT = 2  # bytes of a weight, a key or an activation
VOCABULARY, MAX_MODEL_LEN = 50_257, 2048  # GPT-3's (section 6, Models)


@dataclass(frozen=True, slots=True)
class Model:
    """GPT as in section 2 of the paper: QKV, attention out and an MLP of four times the width, in each layer."""

    name: str
    layers: int
    hidden: int

    @property
    def linear(self) -> tuple[int, ...]:
        """Parameters of each linear operation of one layer."""
        return tuple(factor * self.hidden**2 for factor in (3, 1, 4, 4))

    @property
    def params(self) -> int:
        """Input and output share one table of embeddings."""
        return self.layers * sum(self.linear) + VOCABULARY * self.hidden

    @property
    def slot_bytes(self) -> int:
        """Bytes of the keys and values of a token in all layers (a slot in section 4.2 of the paper)."""
        return ELEMENT * 2 * self.hidden * self.layers
