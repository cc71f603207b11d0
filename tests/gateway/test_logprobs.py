"""Log probabilities of output and prompt in OpenAI's two formats and vLLM's, and the echoed prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai_document
import pytest
from stack import NAME, Stack
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from gateway.answer.logprobs import Echo
from services.messages import PromptLogprobs
from services.text import Tokenizer

BODY = {"prompt": "aé", "max_tokens": 6}


def completion(http: httpx.Client, logprobs: int) -> tuple[str, Any]:
    choice = http.post("/v1/completions", json=BODY | {"logprobs": logprobs}).json()["choices"][0]
    return choice["text"], choice["logprobs"]


def test_completions(http: httpx.Client) -> None:
    text, logprobs = completion(http, 5)
    assert text == "aéaé"
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9"] * 2
    assert logprobs["token_logprobs"] == [-0.5] * 6
    # the engine's fifth token has minus infinity, which JSON cannot represent
    assert [sorted(top.values()) for top in logprobs["top_logprobs"]] == [[-9999.0, -3.5, -2.5, -1.5, -0.5]] * 6
    # characters that begin before the token
    assert logprobs["text_offset"] == [0, 1, 2, 2, 3, 4]


def test_zero_is_the_sampled_token_alone(http: httpx.Client) -> None:
    _, logprobs = completion(http, 0)
    assert logprobs["top_logprobs"][0] == {"a": -0.5}


def test_chat(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "é"}], "logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    user, *content = choice["logprobs"]["content"]
    assert user["token"] == "<user>"  # a special token has a name but no text
    assert choice["message"]["content"] == "é"
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert content[0]["top_logprobs"][0] == {"token": "�", "logprob": -0.5, "bytes": [0xC3]}


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_text_begins_with_the_prompt(http: httpx.Client) -> None:
    answer = post(http, COMPLETIONS, prompt="hello world", max_tokens=2, echo=True)
    assert answer["choices"][0]["text"] == "hello world" + "hello world"
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 2


def test_echo_without_completion(http: httpx.Client) -> None:
    """A completion without tokens: the one that the engine generates is not part of the answer."""
    answer = post(http, COMPLETIONS, prompt="hello né", max_tokens=0, echo=True, temperature=0.7, stop="hello")
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == ("hello né", "length", None)
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 0)
    plain = post(http, COMPLETIONS, prompt="hello né", max_tokens=0, logprobs=1, return_token_ids=True)["choices"][0]
    assert (plain["text"], plain["finish_reason"], plain["token_ids"]) == ("", "length", [])
    assert plain["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


@pytest.mark.parametrize("most", [0, 1, 3])
def test_log_probabilities_begin_with_the_prompt_s(http: httpx.Client, stack: Stack, most: int) -> None:
    answer = post(http, COMPLETIONS, prompt="aé hello", max_tokens=most, echo=True, logprobs=1)
    (choice,) = answer["choices"]
    prompt = stack.tokenizer.encode("aé hello")
    assert choice["text"] == "aé hello" + stack.tokenizer.decode(prompt[:most])
    told = choice["logprobs"]
    assert (
        told["tokens"]
        == ["a", "bytes:\\xc3", "bytes:\\xa9", " ", "hello", "a", "bytes:\\xc3", "bytes:\\xa9"][: 5 + most]
    )
    assert told["token_logprobs"] == [None, *(-token / 8 for token in prompt[1:]), *[-0.5] * most]
    tenth = stack.tokenizer.literal_bytes(10).decode()
    assert told["top_logprobs"][:2] == [None, {tenth: -1 / 8, "bytes:\\xc3": -prompt[1] / 8}]
    assert told["text_offset"] == [0, 1, 2, 2, 3, 8, 9, 10][: 5 + most]
    assert {len(values) for values in told.values()} == {5 + most}
    assert answer["usage"]["completion_tokens"] == most
    # the document requires numbers; the API has null for the first token
    choice["logprobs"] = {name: values[1:] for name, values in told.items()}
    openai_document.check("CreateCompletionResponse", answer)


def test_zero_likeliest_is_the_token_itself(http: httpx.Client) -> None:
    told = post(http, COMPLETIONS, prompt="hello", max_tokens=1, echo=True, logprobs=0)["choices"][0]["logprobs"]
    assert told["top_logprobs"] == [None, {"hello": -0.5}]


def test_special_tokens_of_a_prompt_are_spelled_out(http: httpx.Client, stack: Stack) -> None:
    ids = stack.tokenizer.encode("<user>hi")
    for prompt in ("<user>hi", ids):
        choice = post(http, COMPLETIONS, prompt=prompt, max_tokens=0, echo=True, logprobs=0)["choices"][0]
        assert choice["text"] == "<user>hi"
        assert choice["logprobs"]["text_offset"] == [0, 6, 7]


def test_tokens_added_by_the_tokenizer_are_not_in_the_text(tmp_path: Path) -> None:
    """A BOS and a space before the text and an EOS after it; a prompt of token ids contains them."""
    pieces = ["<s>", "</s>", *BYTES, "▁", "▁the", "▁cat", "é"]
    backend = Backend(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    prompt = tokenizer.encode("the cat é")
    assert [tokenizer.literal_bytes(token).decode() for token in prompt] == ["<s>", " the", " cat", " ", "é", "</s>"]
    scores = PromptLogprobs([-1.0] * 5, [1] * 5, [], [])
    text, ids = Echo(tokenizer, prompt, "the cat é"), Echo(tokenizer, prompt)
    assert (text.text, text.logprobs(scores, 0)["text_offset"]) == ("the cat é", [0, 0, 3, 7, 8, 9])
    assert (ids.text, ids.logprobs(scores, 0)["text_offset"]) == ("<s> the cat é</s>", [0, 3, 7, 11, 12, 13])


def test_the_fields_that_lm_eval_reads(http: httpx.Client, stack: Stack) -> None:
    """Its rule for multiple choice: the log probabilities of the answer's tokens, and whether each is the likeliest."""
    context, answer = stack.tokenizer.encode("hello world"), [12, 10]
    body = {"prompt": [context + answer], "echo": True, "max_tokens": 1, "logprobs": 1, "temperature": 0, "seed": 1234}
    (choice,) = post(http, COMPLETIONS, model=NAME, **body)["choices"]
    told = choice["logprobs"]
    own = told["token_logprobs"][len(context) : -1]
    tops = [max(top.values()) for top in told["top_logprobs"][len(context) : -1]]
    assert sum(own) == (-12 - 10) / 8
    assert [a == b for a, b in zip(own, tops, strict=True)] == [False, True]
    assert len(told["tokens"]) == len(context) + 3


@pytest.mark.parametrize("count", [0, 2])
def test_prompt_logprobs(http: httpx.Client, stack: Stack, count: int) -> None:
    """vLLM's format, in each choice of a completion. Those of output tokens are only included if requested."""
    body = {"prompt": [[5, 10, 40], "hé"], "max_tokens": 2, "prompt_logprobs": count}
    answer = post(http, COMPLETIONS, **body)
    first, second = answer["choices"]
    text = [stack.tokenizer.literal_bytes(token).decode() for token in (10, 11, 40)]
    ten, eleven, forty = ({"decoded_token": t} for t in text)
    top = {"10": ten | {"logprob": -1 / 8, "rank": 1}, "11": eleven | {"logprob": -2 / 8, "rank": 2}}
    assert first["prompt_logprobs"] == [
        None,
        ({"10": ten | {"logprob": -10 / 8, "rank": 11}} | {i: e for i, e in top.items() if i != "10" and count}),
        ({"40": forty | {"logprob": -5.0, "rank": 41}} | (top if count else {})),
    ]
    assert [next(iter(e.values()))["decoded_token"] for e in second["prompt_logprobs"][1:]] == ["�", "�"]
    assert first["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 4


def test_prompt_logprobs_of_a_chat(http: httpx.Client) -> None:
    answer = post(http, CHAT, messages=[{"role": "user", "content": "hi"}], prompt_logprobs=0, n=2)
    prompt = answer["prompt_logprobs"]
    assert [prompt[0], *(next(iter(e.values()))["decoded_token"] for e in prompt[1:])] == [
        None,
        "h",
        "i",
        "<eos>",
        "<assistant>",
    ]
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])
    assert all(choice["logprobs"] is None for choice in answer["choices"])


def test_each_field_has_its_own_number_of_tokens(http: httpx.Client) -> None:
    body = {"prompt": [40, 41, 42], "max_tokens": 1, "echo": True, "logprobs": 3, "prompt_logprobs": 1}
    (choice,) = post(http, COMPLETIONS, **body)["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [4, 4, 3]
    assert [len(entry) for entry in choice["prompt_logprobs"][1:]] == [2, 2]
    plain = post(http, COMPLETIONS, prompt="hi", max_tokens=1)
    assert plain["choices"][0]["prompt_logprobs"] is None


def test_a_prompt_of_one_token(http: httpx.Client) -> None:
    body = {"prompt": [40], "max_tokens": 0, "echo": True, "logprobs": 1, "prompt_logprobs": 1}
    (choice,) = post(http, COMPLETIONS, **body)["choices"]
    assert choice["prompt_logprobs"] == [None]
    assert choice["logprobs"] == {"tokens": ["I"], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]}
