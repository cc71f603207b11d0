"""The comparisons of families and of hybrids run on tiny models. Their figures are not checked: they need a quiet
machine."""

from __future__ import annotations

import pytest
from tiny_families import small_config

from load.bench.engine import hybrids
from load.bench.engine.families import MODELS, compare, config_of, families_table
from load.bench.engine.timing import Scale
from services.engine.families.registry import spec_of
from services.engine.settings import EngineSettings

SHORT = Scale(window=0.0001, budget=0.0, row_counts=(1, 32), steps=4, times=1)


def test_both_ways_of_a_tiny_model_are_measured() -> None:
    config = small_config("smollm3", max_position_embeddings=1024)
    found = list(compare("tiny", config, EngineSettings("cpu", "float32"), SHORT))
    assert [one.fast.name for one in found] == [one.stock.name for one in found]
    assert len(found) == 3
    for one in found:
        assert one.fast.floor.seconds == pytest.approx(one.stock.floor.seconds)
        assert one.times > 0.0
    assert families_table(found).count("tiny") == 3


@pytest.mark.parametrize("model", MODELS)
def test_each_is_on_the_fast_path(model: str) -> None:
    assert spec_of(config_of(model))


def test_the_engine_and_transformers_alone_are_measured() -> None:
    config = small_config("qwen3_5_text", max_position_embeddings=1024)
    found = hybrids.compare(config, EngineSettings("cpu", "float32"), 1)
    assert [len(seconds) for phase in found.values() for seconds in phase.values()] == [1] * 6
    assert hybrids.hybrids_table({"tiny": found}).count("tiny") == 3
