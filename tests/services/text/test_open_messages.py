"""With `continue_final_message`, prompts are rendered and refused as by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from services.text import ChatTemplate, Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
# small templates in the styles of several families
TEMPLATES = {
    "ChatML": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "Llama 3, which strips contents": "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}",
    "Mistral, which ends turns of the assistant alone": "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}",
    "Zephyr, whose turns end with a line": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content + eos_token }}\n"
    "{% endfor %}",
    "one that takes the thoughts out of earlier turns": "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}</{{ m.role }}>{% endfor %}",
    "one that keeps the first word": "{% for m in messages %}{{ m.content.split(' ')[0] }}<end>{% endfor %}",
    "one that leaves the assistant out": "{% for m in messages if m.role == 'user' %}{{ m.content }}<end>{% endfor %}",
}
ENDS = ["Paris", "The capital of France is", "  It is ", "Line\n", "\n", "", "a<end>b", "東京 🎉", "x</think>y"]


def chats(end: str) -> list[list[dict[str, Any]]]:
    asked = {"role": "user", "content": "What is it?"}
    earlier = [asked, {"role": "assistant", "content": "<think>hm</think>What?"}, {"role": "user", "content": end}]
    return [
        [asked, {"role": "assistant", "content": end}],
        earlier,
        [{"role": "assistant", "content": end, "name": None}],
    ]


@pytest.fixture(scope="module")
def any_tokenizer(default_model: Path) -> PreTrainedTokenizerFast:
    """To render the templates of other models."""
    return PreTrainedTokenizerFast(tokenizer_file=str(default_model / "tokenizer.json"), **SPECIAL)


@pytest.fixture(scope="module")
def default_tokenizers(default_model: Path) -> tuple[PreTrainedTokenizerFast, Tokenizer]:
    """That of transformers and ours."""
    return AutoTokenizer.from_pretrained(default_model), Tokenizer.load(default_model)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("end", ENDS)
def test_templates_are_rendered_as_in_transformers(name: str, end: str, any_tokenizer: PreTrainedTokenizerFast) -> None:
    theirs, template = any_tokenizer, TEMPLATES[name]
    for chat in chats(end):
        asked: dict[str, Any] = {"chat_template": template, "tokenize": False, "continue_final_message": True}
        try:
            expected = theirs.apply_chat_template(chat, **asked)
        except ValueError:
            expected = None
        assert rendered(ChatTemplate(template, SPECIAL), chat) == expected


@pytest.mark.parametrize("end", ENDS)
def test_the_default_model_s_template_is_rendered_as_in_transformers(
    end: str, default_tokenizers: tuple[PreTrainedTokenizerFast, Tokenizer]
) -> None:
    theirs, ours = default_tokenizers
    for chat in chats(end):
        expected = theirs.apply_chat_template(chat, tokenize=False, continue_final_message=True)
        assert ours.apply_chat_template(chat, add_generation_prompt=False, continue_final_message=True) == expected
        assert expected.endswith(end)


@pytest.mark.parametrize(("content", "prompt"), [("a ", "a |a "), ("", "|")])
def test_a_template_may_write_the_last_message_twice(content: str, prompt: str) -> None:
    """Here transformers leaves its mark in the prompt."""
    twice = ChatTemplate("{{ messages[-1].content }}|{{ messages[-1].content }}<end>", {})
    assert rendered(twice, [{"role": "assistant", "content": content}]) == prompt


def test_a_message_without_text_cannot_be_continued() -> None:
    with pytest.raises(ValueError, match="no text to continue"):
        ChatTemplate(TEMPLATES["ChatML"], {}).apply([{"role": "assistant", "content": None}], False, True)


def rendered(template: ChatTemplate, chat: list[dict[str, Any]]) -> str | None:
    try:
        return template.apply(chat, add_generation_prompt=False, continue_final_message=True)
    except ValueError:
        return None
