"""What transformers computes for the items of the lm-eval tasks, in float32; runs in the server's environment.

usage: lm_eval_reference.py ITEMS.jsonl ANSWERS RESULT.json

RESULT has `scores`, for each item the log likelihood of each choice, and `answers`, what `generate` answers to the
first ANSWERS items, up to the end of the line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer

from services.engine.backends.stock.loading import read_model

MAX_NEW_TOKENS = 12


def main(items: Path, answers: int, result: Path) -> None:
    folder = Path(os.environ["ORCA_MODEL_FOLDER"])
    model = read_model(folder, torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = [json.loads(line) for line in items.read_text().splitlines()]
    prompts = [f"Question: {line['question']}\nAnswer:" for line in lines]

    def score(prompt: str, choice: str) -> float:
        """The sum of log probabilities of the tokens of `choice` behind `prompt`."""
        context, whole = tokenizer(prompt).input_ids, tokenizer(f"{prompt} {choice}").input_ids
        with torch.no_grad():
            logprobs = model(torch.tensor([whole])).logits[0].log_softmax(-1)
        return sum(float(logprobs[i - 1, whole[i]]) for i in range(len(context), len(whole)))

    def answer(prompt: str) -> str:
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            tokens = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)[0]
        text: str = tokenizer.decode(tokens[inputs.input_ids.shape[1] :], skip_special_tokens=True)
        return text.partition("\n")[0]

    scores = [
        [score(prompt, choice) for choice in line["choices"]] for prompt, line in zip(prompts, lines, strict=True)
    ]
    result.write_text(json.dumps({"scores": scores, "answers": [answer(prompt) for prompt in prompts[:answers]]}))


main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
