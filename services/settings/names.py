"""Names of settings as users write them: flags of vLLM, and suggestions for names that do not exist."""

from __future__ import annotations

from collections.abc import Container, Iterable
from difflib import get_close_matches

from services.errors import UsageError

# flags of `vllm serve` that are accepted, with the setting that has the same meaning
VLLM_FLAGS = {
    "--max-num-seqs": "max_batch_size",
    "--max-num-batched-tokens": "token_budget",
    "--tensor-parallel-size": "tp",
    "-tp": "tp",
    "--pipeline-parallel-size": "pp",
    "-pp": "pp",
    "--num-gpu-blocks-override": "kv_blocks",
    "--enable-prefix-caching": "prefix_caching",
    "--api-server-count": "gateways",
    "-asc": "gateways",
    "--shutdown-timeout": "drain_timeout",
    "-q": "quantization",
}
# names of vLLM whose values become a part of another setting, which Settings does
PARTS = {"revision": "model", "runner": "hf_overrides", "task": "hf_overrides", "convert": "hf_overrides"}
# flags of `vllm serve` that are refused, with what to do instead
VLLM_REFUSED = {
    "--gpu-memory-utilization": "it is a share of all memory; use --kv-memory-fraction, a share of the free memory",
    "--device-memory-utilization": "it is a share of all memory; use --kv-memory-fraction, a share of the free memory",
    "--kv-cache-memory-bytes": "use --kv-blocks, or --kv-memory-fraction, a share of the free memory",
    "--load-format": "safetensors and GGUF are told apart by the file",
    "--download-dir": "set HF_HOME for files of the hub, --cache-dir for what is converted or compiled",
    "--tokenizer-revision": "it is a part of the tokenizer's name: --tokenizer REPOSITORY@REVISION",
    "--tokenizer-mode": "the tokenizer is that of tokenizer.json",
    "--chat-template-content-format": "the template gets the text of each message",
    "--trust-request-chat-template": "a template could take any time and memory; --chat-template is the server's own",
    "--enable-auto-tool-choice": "it is always on; --tool-call-parser none turns tools off",
    "--trust-remote-code": "code of a model's repository is never run",
    "--seed": "tokens depend on the request alone; send the field 'seed' in the request",
    "--enable-chunked-prefill": "use --tbt-target; its value 0 computes prompts whole",
    "--scheduling-policy": "use --order; its classes age and have TTFT targets",
    "--async-scheduling": "use --lookahead 1",
    "--collect-detailed-traces": "traces always have the spans of queue, scheduler and engine",
    "--max-num-queued-reqs": "it counts running requests too; use --max-waiting, which counts waiting requests",
    "--data-parallel-size": "it shards experts too; use --engines for copies of the model behind one API",
    "-dp": "it shards experts too; use --engines for copies of the model behind one API",
    "--distributed-executor-backend": "Ray is always used",
    "--enforce-eager": "leave it out; no setting turns CUDA graphs off, and CPUs use none",
    "--max-logprobs": "a request may ask for 20, vLLM's default, see docs/api.md",
    "--disable-log-requests": "leave it out; requests are logged only with --enable-log-requests",
    "--uds": "the API listens on --host and --port",
    "--ssl-ca-certs": "clients show API keys, not certificates",
    "--ssl-cert-reqs": "clients show API keys, not certificates",
    "--max-loras": "leave it out; any number of adapters can be in one batch",
    "--max-cpu-loras": "leave it out; engines keep the adapters that were used last",
    "--lora-dtype": "leave it out; adapters are computed as the model is",
    "--fully-sharded-loras": "leave it out",
    "--lora-target-modules": "an adapter says itself which layers it changes",
    "--root-path": "put a proxy that strips the path before the API",
}


def own_flag(argument: str, switches: Container[str]) -> str:
    """Return `argument` of a command line with a flag of vLLM replaced by ours; `switches` are the boolean settings.

    Raises UsageError for a flag of vLLM that is refused.
    """
    flag, equals, value = argument.partition("=")
    positive = flag.replace("--no-", "--", 1)
    if positive in VLLM_REFUSED:
        raise UsageError(f"{flag} of vLLM is not accepted: {VLLM_REFUSED[positive]}")
    setting = VLLM_FLAGS.get(positive)
    if setting is None or (flag != positive and setting not in switches):
        return argument
    return f"--{'no-' * (flag != positive)}{_hyphens(setting)}{equals}{value}"


def own_name(key: str, known: Iterable[str], accepted: Iterable[str]) -> str:
    """Return the setting that `key` of a settings file names: our flag or that of vLLM without its leading
    dashes, with '-' or '_'. `accepted` are further names, which are not suggested.

    Raises UsageError if the name is unknown or refused.
    """
    name, flag = key.replace("-", "_"), f"--{_hyphens(key)}"
    if name in known or name in accepted:
        return name
    if flag in VLLM_FLAGS:
        return VLLM_FLAGS[flag]
    if flag in VLLM_REFUSED:
        raise UsageError(f"{key} of vLLM is not accepted: {VLLM_REFUSED[flag]}")
    raise UsageError(f"unknown setting {key!r}{suggestion(name, known)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the known name that is most similar to `name`, or an empty text."""
    nearest = get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _hyphens(name: str) -> str:
    return name.replace("_", "-")
