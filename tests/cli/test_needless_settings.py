"""What a start warns of, and which models it waits for."""

from __future__ import annotations

from cli.serve import needless_warning, served, unnamed_adapters, unready_models
from services.settings.settings import Settings

TEXT = "model a: cold\nmodel b: No engine is ready.\nmodel c, shard 1: No engine is ready."


def test_batch_invariance_cannot_be_switched_off() -> None:
    assert "batch_invariant=false changes nothing" in needless_warning(Settings(batch_invariant=False))
    assert not needless_warning(Settings())
    assert not needless_warning(Settings(batch_invariant=True))


def test_adapters_of_tenants_without_a_key_are_named() -> None:
    modules = ['{"name": "law", "path": "/a", "tenants": ["alice"]}', "sql=/b"]
    several = Settings(models=[{"model": "a", "enable_lora": True, "lora_modules": modules}, "b"])
    (warning,) = unnamed_adapters(several)
    assert "law is for alice alone" in warning
    assert unnamed_adapters(several.model_copy(update={"api_keys": {"k": "alice"}})) == []
    page = 'orca:engines{model_name="a"} 1\norca:engines{model_name="b"} 1\n'
    for model in "ab":
        page += f'orca:weights_info{{model_name="{model}",weights="float32"}} 1\n'
    assert served(page, several) == ["models: a, b", "weights: a: float32", "weights: b: float32", "adapters: law, sql"]
    assert served('orca:engines{model_name="a"} 1\n', Settings()) == []


def test_a_start_waits_for_the_models_of_its_configuration() -> None:
    """Not for one that was added earlier: without the server, its operator could not remove it."""
    assert unready_models(TEXT, ["a"]) == []
    assert unready_models(TEXT, ["a", "b"]) == ["model b: No engine is ready."]
    assert unready_models(TEXT, ["c", "bb"]) == ["model c, shard 1: No engine is ready."]
    assert unready_models("", ["a"]) == []
    assert unready_models("shard 1: No engine is ready.", ["a"]) == []
    assert unready_models("model a: asleep\nmodel b, shard 1: off", ["a", "b"]) == []
