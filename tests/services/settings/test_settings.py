"""Settings from flags, variables and files: precedence and errors."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from actors.knobs import knobs_of
from services.errors import UsageError
from services.messages import EngineFigures, LargestIteration
from services.scheduling import Knobs
from services.settings.names import VLLM_FLAGS, VLLM_REFUSED
from services.settings.settings import NAMES, Settings, sections
from services.settings.sources import load
from services.settings.types import hash_of

ROOT = Path(__file__).parents[3]
FIGURES = EngineFigures("m", 1024, 512, 16, 50_000, "r float32 cpu native")
LARGEST = LargestIteration(256, 8192, 512)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCA_PORT", raising=False)


def test_flags_go_before_variables_before_the_given_file_before_orca_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orca.toml").write_text("port = 1001\nmax_batch_size = 7\nengines = 3\n")
    given = tmp_path / "given.yaml"
    given.write_text("port: 1002\nmax-num-seqs: 8\n")
    assert load().port == 1001
    assert load(given).port == 1002
    monkeypatch.setenv("ORCA_PORT", "1003")
    assert load(given).port == 1003
    settings = load(given, port=1004)
    assert (settings.port, settings.max_batch_size, settings.engines) == (1004, 8, 3)


def test_keys_of_a_source_replace_those_of_lower_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_API_KEYS", '{"a": "alice"}')
    monkeypatch.setenv("ORCA_API_KEY", "k")
    assert load().tenants == {hash_of("k"): "default", hash_of("a"): "alice"}
    said = load(api_keys={"b": "bob"}, api_key=["l", "m"])
    assert said.tenants == {hash_of("l"): "default", hash_of("m"): "default", hash_of("b"): "bob"}


def test_settings_are_unchanged_in_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(api_key=["k", "l"], api_keys={"a": "alice"}, tp=2)
    monkeypatch.setenv("ORCA_API_KEY", "other")
    assert load(**json.loads(json.dumps(settings.with_key_hashes()))) == settings


def test_the_preset_of_the_paper_is_algorithm_1() -> None:
    settings = load(preset="paper")
    assert knobs_of(settings, FIGURES) == Knobs()
    assert knobs_of(load(), FIGURES) != Knobs()
    assert load(**json.loads(json.dumps(settings.without_secrets()))) == settings


def test_a_given_setting_takes_precedence_over_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orca.toml").write_text('tbt-target = 0.5\nadmission = "on_demand"\n')
    monkeypatch.setenv("ORCA_LOOKAHEAD", "1")
    expected = Knobs(tbt_target=0.5, admission="on_demand", lookahead=1)
    assert knobs_of(load(preset="paper", tbt_target="0.5"), FIGURES) == expected


@pytest.mark.parametrize(
    ("given", "blocks", "largest", "batch", "budget", "drafts"),
    [
        ({}, 100, None, 32, None, 16),
        ({}, 100_000, LARGEST, 256, 8192, 1),
        ({}, 3200, LARGEST, 100, 8192, 4),
        ({}, 100, LARGEST, 32, 8192, 15),
        ({"max_batch_size": 500}, 100, None, 500, None, 16),
        ({"max_batch_size": 500}, 100, LARGEST, 256, 8192, 1),
        ({"max_batch_size": 4}, 100_000, LARGEST, 4, 8192, 16),
        ({"token_budget": 20}, 100, None, 20, 20, 16),
        ({"token_budget": 20}, 100_000, LARGEST, 20, 20, 16),
        ({"token_budget": 9000}, 100, LARGEST, 32, 8192, 15),
    ],
)
def test_iterations_are_not_larger_than_an_engine_has_memory_for(
    given: dict[str, object],
    blocks: int,
    largest: LargestIteration | None,
    batch: int,
    budget: int | None,
    drafts: int,
) -> None:
    """Of a GPU; where nothing is given, its batch is as large as its blocks have room for."""
    figures = replace(FIGURES, num_blocks=blocks, block_size=16, largest=largest, verifies_drafts=True)
    knobs = knobs_of(load(**given), figures)
    assert (knobs.max_batch_size, knobs.token_budget, knobs.num_speculative_tokens) == (batch, budget, drafts)


DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3}'


@pytest.mark.parametrize(
    ("given", "device", "lookahead", "drafts"),
    [
        ({}, "cpu", 0, 16),
        ({}, "cuda", 1, 0),
        ({"lookahead": 0}, "cuda", 0, 16),
        ({"lookahead": "1"}, "cpu", 1, 0),
        ({"tp": 2}, "cuda", 0, 16),
        ({"speculative_config": "off"}, "cuda", 1, 0),
        ({"speculative_config": DRAFTS}, "cuda", 0, 3),
        ({"preset": "paper"}, "cuda", 0, 0),
    ],
)
def test_a_gpu_is_sent_iterations_ahead(given: dict[str, object], device: str, lookahead: int, drafts: int) -> None:
    knobs = knobs_of(load(**given), replace(FIGURES, numerics=f"r bfloat16 {device}", verifies_drafts=True))
    assert (knobs.lookahead, knobs.num_speculative_tokens) == (lookahead, drafts)


@pytest.mark.parametrize(
    ("given", "numerics", "target", "stretched"),
    [
        ({}, "r bfloat16 cpu native amx", 0.18, True),
        ({}, "r bfloat16 cuda native", 0.05, True),
        ({"tbt_target": 0.1}, "r bfloat16 cuda native", 0.1, False),
        ({"tbt_target": 0}, "r bfloat16 cuda native", None, False),
    ],
)
def test_the_automatic_target_is_that_of_the_device(
    given: dict[str, object], numerics: str, target: float | None, stretched: bool
) -> None:
    knobs = knobs_of(load(**given), replace(FIGURES, numerics=numerics))
    assert (knobs.tbt_target, knobs.stretch_target, knobs.token_budget) == (target, stretched, None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.yaml", "prot: 1", "c.yaml: unknown setting 'prot'; did you mean port?"),
        ("c.toml", "prot = 1", "c.toml: unknown setting 'prot'; did you mean port?"),
        ("c.yml", "gpu-memory-utilization: 0.9", "c.yml: gpu-memory-utilization of vLLM is not accepted: .*kv-memory"),
        ("c.yaml", "max-num-seqs: 1\nmax_batch_size: 2", "c.yaml: max_batch_size is set twice"),
        ("c.yaml", "- port", "c.yaml: holds a list, not names and values"),
        ("c.yaml", "port: [1", "c.yaml: while parsing.* line 1"),
        ("c.toml", "port: 1", "c.toml: .*line 1"),
        ("c.json", "{}", "c.json: a settings file ends with .toml, .yaml or .yml, not with '.json'"),
        ("c.yaml", "port: 0", "port: .*got 0"),
        ("c.yaml", "port: " + 3000 * "[" + 3000 * "]", "c.yaml: its values are nested too deep"),
        ("c.toml", "port = " + 3000 * "[" + 3000 * "]", "c.toml: its values are nested too deep"),
    ],
)
def test_an_error_in_a_file_is_one_line_that_names_it(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said) as raised:
        load(tmp_path / name)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"c.yaml: No such file"):
        load(tmp_path / "c.yaml")


def test_an_empty_yaml_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert load(tmp_path / "c.yaml") == load()


def test_unknown_settings_are_named_with_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"unknown setting: prot; did you mean port\?"):
        load(prot=1)
    monkeypatch.setenv("ORCA_PROT", "1")
    with pytest.raises(UsageError, match=r"ORCA_PROT; did you mean ORCA_PORT\?"):
        load()
    monkeypatch.delenv("ORCA_PROT")
    monkeypatch.setenv("ORCA_MAX_NUM_SEQS", "1")
    with pytest.raises(UsageError, match=r"ORCA_MAX_NUM_SEQS; did you mean ORCA_MAX_BATCH_SIZE\?"):
        load()
    monkeypatch.delenv("ORCA_MAX_NUM_SEQS")
    (tmp_path / "orca.toml").write_text("prot = 1\n")
    with pytest.raises(UsageError, match=r"orca.toml: unknown setting 'prot'; did you mean port\?"):
        load()


def test_an_unreadable_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_API_KEYS", "k")
    with pytest.raises(UsageError, match=r"^ORCA_API_KEYS is not the JSON that it should hold: Expecting value"):
        load()


@pytest.mark.parametrize("flags", [{"api_key": 12345}, {"api_keys": {"k": 12345}}, {"api_key": {"12345": 1}}])
def test_messages_do_not_repeat_secrets(flags: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="api_key") as raised:
        load(**flags)
    assert "12345" not in str(raised.value)


def test_every_setting_is_in_one_section() -> None:
    listed = [name for names in sections().values() for name in names]
    assert sorted(listed) == sorted(NAMES)
    assert all(sections().values())


@pytest.mark.parametrize("key", [*VLLM_FLAGS, *VLLM_REFUSED])
def test_no_flag_of_vllm_hides_a_setting(key: str) -> None:
    assert VLLM_FLAGS.get(key, "port") in NAMES
    assert key[2:].replace("-", "_") not in NAMES


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"port": 70_000}, "port"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"device": "tpu"}, "device"),
        ({"order": "lifo"}, "order"),
        ({"otlp_traces_endpoint": "localhost:4317"}, "otlp_traces_endpoint"),
        ({"log_format": "xml"}, "log_format"),
        ({"preset": "vllm"}, "preset"),
        ({"tbt_target": "soon"}, "tbt_target: is neither 'auto' nor a number of seconds .*'soon'"),
        ({"tbt_target": -1}, "tbt_target: .*got -1"),
        ({"token_budget": 7, "max_batch_size": 32}, "token_budget=7 is less than max_batch_size=32"),
        ({"max_batch_size": "many"}, "max_batch_size: is neither 'auto' nor a number of requests .*'many'"),
        ({"kv_memory_fraction": 1.0}, "kv_memory_fraction: is not a share between 0 and 1 .*1.0"),
        ({"kv_memory_fraction": "most"}, "kv_memory_fraction: is neither 'auto' nor a share .*'most'"),
        ({"tenant_limits": {"a": {"max_wait": 1}}}, "tenant_limits.a.max_wait"),
        ({"max_queue_wait": "soon"}, "max_queue_wait"),
        ({"pool": "a b"}, "pool"),
        ({"redis_url": "redis://h", "durability": "strict"}, "durability"),
        ({"redis_url": "0=redis://h 1=redis://i"}, "engines=1"),
        ({"redis_url": "0=redis://h 0=redis://i", "engines": 2}, "shard 0 is named twice"),
        ({"redis_url": "0=redis://h 1=file://i", "engines": 2}, "redis\\+cluster"),
        ({"device": "cpu", "dtype": "float16"}, "dtype"),
        ({"tp": 2, "lookahead": 1}, "lookahead=1.*tp=2, pp=1"),
        ({"tp": 2, "null_engine": True}, "null engine.*tp=2"),
        ({"demo": True, "host": "0.0.0.0", "api_key": ["k"]}, "demo.*host.*'0.0.0.0'"),
        ({"demo": True, "disable_ui": True}, "demo.*disable_ui"),
        ({"demo": True, "host": "a.example"}, "demo.*host.*'a.example'"),
        ({"lora_modules": ["a=/x"]}, "lora_modules: set enable_lora"),
        ({"enable_lora": True, "lora_modules": ["a=/x", "a=/y"]}, "lora_modules: 'a' is named twice"),
        ({"enable_lora": True, "lora_modules": ["/x"]}, "lora_modules: '/x' is neither NAME=PATH nor"),
        ({"enable_lora": True, "lora_modules": ['{"name": "a"}']}, "lora_modules.0.path"),
        ({"enable_lora": True, "max_lora_rank": 257}, "max_lora_rank"),
        ({"api_key": [""]}, "api_key.*empty"),
        ({"api_keys": {"": "alice"}}, "api_keys.*empty"),
        ({"api_key": ["k"], "api_keys": {"k": "alice"}}, "api_key.*'alice'.*api_keys"),
        ({"share_prefixes": True, "prefix_caching": False}, "share_prefixes=True.*prefix_caching=False"),
    ],
)
def test_wrong_and_contradictory_settings_are_named(flags: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        load(**flags)


def test_modules_of_adapters_have_the_forms_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    own = '{"name": "b", "path": "/y", "base_model_name": "m", "tenants": ["t"]}'
    settings = load(enable_lora=True, lora_modules=["a=/x=1", own])
    assert [(one.name, str(one.path), one.tenants) for one in settings.lora_modules] == [
        ("a", "/x=1", ()),
        ("b", "/y", ("t",)),
    ]
    assert load(**settings.without_secrets()).lora_modules == settings.lora_modules
    assert list(map(str, settings.lora_modules)) == [
        "a=/x=1",
        '{"name":"b","path":"/y","base_model_name":"m","tenants":["t"]}',
    ]
    for text in ("a=/x b=/y", '["a=/x", {"name": "b", "path": "/y"}]'):
        monkeypatch.setenv("ORCA_LORA_MODULES", text)
        assert [str(one) for one in load(enable_lora=True).lora_modules] == ["a=/x", "b=/y"]


def test_generated_documents_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert made["settings"]() == (ROOT / "docs" / "settings.md").read_text()
    assert made["observability"]() == (ROOT / "docs" / "observability.md").read_text()


@pytest.mark.parametrize(
    ("asked", "keys", "expected"),
    [
        ({}, 2, -8),
        ({"order": "priority"}, 1, -8),
        ({"order": "priority"}, 2, 0),
        ({"order": "priority", "tenant_limits": {"a": {"earliest_class": -8}}}, 2, -8),
        ({"tenant_limits": {"a": {"earliest_class": -1}}}, 1, -1),
    ],
)
def test_the_earliest_class_of_a_tenant(asked, keys, expected):
    settings = Settings(api_keys={"1": "a"} | ({"2": "b"} if keys == 2 else {}), **asked)
    assert settings.earliest_class_of("a") == expected


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"engines": 4, "max_engines": 3}, "engines=4 must be from min_engines=1 to max_engines=3"),
        ({"engines": 1, "min_engines": 2, "max_engines": 3}, "engines=1 must be from min_engines=2"),
        ({"engines": 2, "min_engines": 2}, "min_engines=2 needs max_engines"),
        ({"min_engines": 0}, "min_engines=0 needs sleep_idle_seconds"),
        (
            {
                "min_engines": 0,
                "sleep_idle_seconds": 1,
                "engines": 2,
                "max_engines": 2,
                "redis_url": "0=redis://h 1=redis://i",
            },
            "names 2 shards, min_engines=1",
        ),
        ({"gateways": 4, "max_gateways": 3}, "max_gateways=3 is less than gateways=4"),
    ],
)
def test_bounds_of_autoscaling_that_contradict_are_named(given: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Settings(**given)
