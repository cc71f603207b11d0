"""The comparison of hybrids runs on a tiny model. Its figures are not checked: they need a quiet machine."""

from __future__ import annotations

from tiny_families import small_config

from load.bench.engine.hybrids import compare, hybrids_table
from services.engine.settings import EngineSettings


def test_both_ways_of_a_tiny_model_are_measured() -> None:
    config = small_config("qwen3_5_text", max_position_embeddings=1024)
    found = compare(config, EngineSettings("cpu", "float32"), 1)
    assert [len(seconds) for phase in found.values() for seconds in phase.values()] == [1] * 6
    assert hybrids_table({"tiny": found}).count("tiny") == 3
