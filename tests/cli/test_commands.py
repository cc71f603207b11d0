"""The command line of `orca`: flags, aliases, errors of one line, and secrets that are hidden from `ps`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cli import main as orca
from cli.arguments import Parser, parse_serve
from cli.port_claim import own_url
from cli.serve import _check_port, _check_replicas
from cli.server import add_server, headers, not_answering
from load.server import ROOT
from services.errors import SettingsError, UsageError
from services.settings.names import PARTS, VLLM_FLAGS, VLLM_REFUSED
from services.settings.settings import NAMES, Settings
from services.settings.types import Section, hash_of
from services.version import program_version


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCA_PORT", raising=False)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `orca ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["orca", *arguments])
    try:
        orca.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("some/model", {"model": "some/model"}),
        ("--model some/model", {"model": "some/model"}),
        ("some/model --model some/model", {"model": "some/model"}),
        ("--port 9000 some/model", {"port": 9000, "model": "some/model"}),
        ("--max-num-seqs 8", {"max_batch_size": 8}),
        ("--max-num-seqs=8", {"max_batch_size": 8}),
        ("--max-batch-size 4 --max-num-seqs 8", {"max_batch_size": 8}),
        ("--max-num-batched-tokens 512", {"token_budget": 512}),
        ("--tensor-parallel-size 2 --pipeline-parallel-size 3", {"tp": 2, "pp": 3}),
        ("-tp 2 -pp 3", {"tp": 2, "pp": 3}),
        ("-tp=2", {"tp": 2}),
        ("--num-gpu-blocks-override 64", {"kv_blocks": 64}),
        ("--enable-prefix-caching", {"prefix_caching": True}),
        ("--no-enable-prefix-caching", {"prefix_caching": False}),
        ("--api-server-count 3", {"gateways": 3}),
        ("-asc 3", {"gateways": 3}),
        ("-q AWQ", {"quantization": "awq"}),
        ("--quantization gptq_marlin", {"quantization": "gptq_marlin"}),
        ("--shutdown-timeout 5", {"drain_timeout": 5.0}),
        ("--api-key k", {"api_key": (hash_of("k"),)}),
        ("--api-key k l --api-key m", {"api_key": tuple(map(hash_of, "klm"))}),
        ('--api-keys {"k":"alice"}', {"api_keys": {hash_of("k"): "alice"}}),
        ("--deadly-token -1", {"deadly_token": -1}),
        ("--served-model-name m --host 0.0.0.0 --dtype float32 --block-size 8", {"served_model_name": ("m",)}),
        ("--served-model-name m n/o --port 1", {"served_model_name": ("m", "n/o"), "port": 1}),
        ("--served-model-name m --served-model-name m n", {"served_model_name": ("m", "n")}),
    ],
)
def test_a_command_line_sets(arguments: str, expected: dict[str, object]) -> None:
    settings = parse_serve(arguments.split())
    assert {name: getattr(settings, name) for name in expected} == expected


def test_each_accepted_flag_of_vllm_is_tried_above() -> None:
    (mark,) = (m for m in test_a_command_line_sets.pytestmark if m.name == "parametrize")
    tried = {word.partition("=")[0] for case in mark.args[1] for word in case[0].split()}
    assert set(VLLM_FLAGS) <= tried


@pytest.mark.parametrize("flag", VLLM_REFUSED)
def test_a_flag_of_another_meaning_is_refused_with_what_to_do_instead(flag: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{flag} of vLLM is not accepted: {VLLM_REFUSED[flag]}")):
        parse_serve([flag, "1"])
    with pytest.raises(UsageError, match=re.escape(f"{flag} of vLLM is not accepted")):
        parse_serve([f"{flag}=1"])


def test_the_flags_suggested_instead_exist() -> None:
    named = {flag for text in VLLM_REFUSED.values() for flag in re.findall(r"--[a-z-]+", text)}
    assert named
    assert {flag[2:].replace("-", "_") for flag in named} <= set(NAMES)


def test_a_flag_wins_over_a_variable_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text("port: 1001\nmax-num-seqs: 7\nmodel: a\nenable-prefix-caching: false\n")
    (tmp_path / "orca.toml").write_text("engines = 3\nport = 1000\n")
    monkeypatch.setenv("ORCA_PORT", "1002")
    settings = parse_serve(["b", "--config", "c.yaml"])
    assert (settings.port, settings.max_batch_size, settings.engines) == (1002, 7, 3)
    assert (settings.model, settings.prefix_caching) == ("b", False)
    assert parse_serve(["--config", "c.yaml", "--port", "1003"]).port == 1003


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("serve --prot 1", "orca serve: unknown flag --prot; did you mean --port?"),
        ("serve --prot=1", "orca serve: unknown flag --prot; did you mean --port?"),
        ("serve --max-num-sequences 1", "orca serve: unknown flag --max-num-sequences; did you mean --max-num-seqs?"),
        ("serve --max-batch 1", "orca serve: unknown flag --max-batch; did you mean --max-batch-size?"),
        ("serve -p 1", "orca serve: unknown flag -p"),
        ("serve --zzzzzzzz", "orca serve: unknown flag --zzzzzzzz"),
        ("serve --port", "orca serve: argument --port: expected one argument"),
        ("serve --port many", "orca serve: port: Input should be a valid integer"),
        ("serve a --model b", "orca serve: MODEL is 'a' and --model 'b'; name the model once"),
        ("serve --no-enable-chunked-prefill", "orca serve: --no-enable-chunked-prefill of vLLM is not accepted: use"),
        ("serve --config none.yaml", "orca serve: none.yaml: No such file or directory"),
        ("serve --api-keys k", "orca serve: argument --api-keys: is not JSON"),
        ("serve --api-key=", "orca serve: api_key: an empty key"),
        ("serve --host 0.0.0.0", "orca serve: host=0.0.0.0: anyone who reaches this address could use the server"),
        ("serve --ssl-certfile none", "orca serve: ssl_certfile=none: No such file or directory"),
        ("chat --temperatur 1", "orca chat: unknown flag --temperatur; did you mean --temperature?"),
        ("status now", "orca status: unexpected argument 'now'"),
        ("serv", "orca: unknown command 'serv'; did you mean serve?"),
        ("--verison", "orca: unknown flag '--verison'; did you mean --version?"),
        ("zzz", "orca: unknown command 'zzz'; there are: serve, chat, status, top"),
    ],
)
def test_a_wrong_command_ends_with_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert run(monkeypatch, *arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(line)
    assert err.count("\n") == 1


@pytest.mark.parametrize("variable", ["ORCA_PROT", "ORCA_PORTS"])
def test_an_unknown_variable_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    assert run(monkeypatch, "status") == 2
    said = f"orca status: unknown settings in the environment: {variable}; did you mean ORCA_PORT?\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("command", ["status", "chat hello"])
@pytest.mark.parametrize("flags", ["", "--api-key sha256:" + 64 * "b"])
def test_the_hash_of_a_key_is_not_sent_as_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, flags: str
) -> None:
    monkeypatch.setenv("ORCA_API_KEY", hash_of("k"))
    assert run(monkeypatch, *command.split(), *flags.split()) == 2
    err = capsys.readouterr().err
    assert "is the hash of a key" in err
    assert "--api-key KEY" in err
    assert "sha256:" not in err


@pytest.mark.parametrize("keys", [f'["{hash_of("k")}", "l"]', '["l", "m"]', '"l"'])
def test_the_first_key_that_is_no_hash_is_sent(keys: str) -> None:
    Path("orca.toml").write_text(f"api_key = {keys}")
    parser = Parser("orca status", "")
    add_server(parser)
    assert headers(parser.read([]).api_key) == {"Authorization": "Bearer l"}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("::1", "http://[::1]:8000"),
        ("::", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("a", "http://a:8000"),
    ],
)
def test_the_url_at_which_commands_find_a_server_with_these_settings(host: str, url: str) -> None:
    assert own_url(Settings(host=host)) == url


@pytest.mark.parametrize("columns", ["40", "80", "100", "300"])
def test_help_shows_each_setting_once_in_its_section(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run(monkeypatch, "serve", "--help=all") == 0
    text = capsys.readouterr().out
    flags = re.findall(r"^  --([a-z-]+)", text, re.MULTILINE)
    assert sorted(flags) == sorted(["config", *PARTS, *(name.replace("_", "-") for name in NAMES)])
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE)[-len(Section) :] == list(Section)
    assert max(map(len, text.splitlines())) <= max(80, min(100, int(columns)))
    assert " ".join(text.split()).count("(default: ") == len(NAMES)
    for flag in VLLM_FLAGS:
        assert flag in text


def test_help_fits_two_screens_and_names_each_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(monkeypatch, "serve", "--help") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 80
    assert max(map(len, text.splitlines())) <= 80
    named = re.findall(r" --([a-z-]+)(?= |$)", text.partition("all settings")[2], re.MULTILINE)
    assert sorted(named) == sorted(name.replace("_", "-") for name in NAMES)


@pytest.mark.parametrize(
    ("topic", "flags"),
    [
        ("pool", ["redis-url", "pool", "durability", "wait-replicas", "data-dir", "files-dir"]),
        ("max-batch-size", ["max-batch-size"]),
        ("max_batch_size", ["max-batch-size"]),
        ("--tp", ["tp"]),
    ],
)
def test_help_of_a_topic_or_a_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], topic: str, flags: list[str]
) -> None:
    assert run(monkeypatch, "serve", f"--help={topic}") == 0
    assert re.findall(r"^  --([a-z-]+)", capsys.readouterr().out, re.MULTILINE) == ["config", *flags]


def test_help_of_an_unknown_topic(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "serve", "--help=nonsense") == 2
    assert "--help=nonsense is unknown; there are all, model, engine" in capsys.readouterr().err


def test_a_reader_that_ends_early_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([sys.executable, "-m", "cli", "--help"], cwd=ROOT, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_server_that_does_not_answer_is_told_with_the_cause_also_without_words() -> None:
    assert ": ReadTimeout; start one" in not_answering(httpx.URL("http://h"), httpx.ReadTimeout(""))
    assert ": refused; start one" in not_answering(httpx.URL("http://h"), httpx.ConnectError("refused"))


def test_version_and_list_of_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"orca {program_version()}\n"
    assert run(monkeypatch, "--help") == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {command} " in listed for command in orca.COMMANDS)
    assert run(monkeypatch) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_a_port_in_use_is_reported_before_anything_starts(host: str) -> None:
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port={port}, host={host}: Address already in use"):
            _check_port(Settings(host=host, port=port))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_free_port_is_not_reported(host: str) -> None:
    for _ in range(20):  # another process may take the port after it was found free
        with socket.create_server((host, 0)) as found:
            port = found.getsockname()[1]
        with contextlib.suppress(SettingsError):
            return _check_port(Settings(host=host, port=port))
    pytest.fail("each free port is reported as in use")


def test_a_host_that_is_no_address_is_reported() -> None:
    with pytest.raises(SettingsError, match=r"host=none\.invalid: "):
        _check_port(Settings(host="none.invalid"))


HIDING = """
import sys
from pathlib import Path
from cli.arguments import hide_secrets
print(hide_secrets(), sys.argv[1:], Path("/proc/self/cmdline").read_text().split(chr(0))[3:-1], sep="|")
"""


@pytest.mark.parametrize(
    ("arguments", "shown", "flags"),
    [
        ("m --api-key abc d --port 1 e", "m --api-key *** * --port 1 e", ["--api-key"]),
        ("--api-key=abc --redis-url=x", "--api-key=*** --redis-url=*", ["--api-key", "--redis-url"]),
        ("--api-key a --api-key b", "--api-key * --api-key *", ["--api-key"]),
        ('--api-keys {"a":"é"} -x y', "--api-keys ********** -x y", ["--api-keys"]),
        ("--api-keys-file f --port 1", "--api-keys-file f --port 1", []),
        ("--operator-api-key Makefile --api-key=abc", "--operator-api-key ******** --api-key=***", ["--api-key"]),
    ],
)
def test_values_of_secret_flags_become_stars(arguments: str, shown: str, flags: list[str]) -> None:
    command = [sys.executable, "-c", HIDING, *arguments.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().split("|") == [str(flags), str(arguments.split()), str(shown.split())]


def test_replicas_are_waited_for_only_where_there_may_be_some() -> None:
    _check_replicas(Settings(wait_replicas=1, redis_url="redis://h"))
    with pytest.raises(SettingsError, match="wait_replicas=2: the pool's server that Orca starts has no replicas"):
        _check_replicas(Settings(wait_replicas=2))
