"""EleutherAI's evaluation harness on a file of our own, and transformers' own scores of the same items."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from steps import BASE_URL, BIN, MODEL, MODEL_FOLDER, SCRATCH, expect, run, step

HERE = Path(__file__).parent
ITEMS = SCRATCH / "general_knowledge.jsonl"
ANSWERS = 12  # items that are answered in words
TOLERANCE = 1e-3  # of a log likelihood, in nats: float32 sums in another order

for file in (HERE.parent / "data").iterdir():
    shutil.copy(file, SCRATCH)


def evaluate(task: str, *more: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The task's results, and its items in their order, as lm-eval writes them."""
    out = SCRATCH / task
    settings = f"model={MODEL},base_url={BASE_URL}/completions,tokenizer={MODEL_FOLDER},tokenizer_backend=huggingface"
    run(
        *(BIN / "lm-eval", "run", "--model", "local-completions", "--tasks", task, "--include_path", "."),
        *("--model_args", settings + ",num_concurrent=4,max_retries=1", "--batch_size", "4"),
        *("--output_path", out, "--log_samples", *more),
        HF_HOME=str(SCRATCH / "huggingface"),
    )
    results: dict[str, Any] = json.loads(next(out.rglob("results_*.json")).read_text())["results"][task]
    samples = [json.loads(line) for line in next(out.rglob("samples_*.jsonl")).read_text().splitlines()]
    return results, sorted(samples, key=lambda sample: int(sample["doc_id"]))


def reference() -> dict[str, Any]:
    result = SCRATCH / "reference.json"
    if not result.exists():
        run(os.environ["ORCA_PYTHON"], HERE / "lm_eval_reference.py", ITEMS, ANSWERS, result)
    read: dict[str, Any] = json.loads(result.read_text())
    return read


@step("multiple choice equal to transformers")
def _() -> str:
    results, samples = evaluate("orca_general_knowledge")
    items = [json.loads(line) for line in ITEMS.read_text().splitlines()]
    theirs = reference()["scores"]
    ours = [[float(response[0]) for response in sample["filtered_resps"]] for sample in samples]
    expect(len(ours) == len(theirs) == len(items), len(ours), len(theirs))
    right = [scores.index(max(scores)) == item["answer"] for scores, item in zip(theirs, items, strict=True)]
    accuracy = sum(right) / len(right)
    off = max(abs(a - b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True))
    said = f"accuracy {results['acc,none']:.3f}, transformers {accuracy:.3f}; log likelihoods at most {off:.1e} apart"
    expect(abs(results["acc,none"] - accuracy) < 1e-9 and off < TOLERANCE, said)
    return said


@step("generation equal to transformers")
def _() -> str:
    _, samples = evaluate("orca_short_answers", "--limit", str(ANSWERS))
    ours = [sample["resps"][0][0] for sample in samples]
    theirs = reference()["answers"]
    expect(ours == theirs, *[pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]])
    return f"{len(ours)} of {len(theirs)} answers are equal"
