"""Chat templates are rendered as by transformers. What they refuse is a ValueError with their own message."""

import json
from pathlib import Path

import pytest

from services.errors import ModelError
from services.text import ChatTemplate, Tokenizer

CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "<b>&'\"</b> 東京 🎉"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
]
# what templates of other families use: blocks on lines of their own, namespaces, loop controls, filters, generation
RICH = """
{%- set ns = namespace(system='') %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% set ns.system = message.content | trim %}
        {% continue %}
    {% endif %}
    {% if message.role not in ['user', 'assistant'] %}
        {{ raise_exception('Unknown role: ' + message.role) }}
    {% endif %}
{{ bos_token }}[{{ loop.index0 }}|{{ ns.system }}]{{ {'content': message.content, 'é': [1, 2]} | tojson }}
    {% if message.role == 'assistant' %}
        {% generation %}{{ message.content.split(' ')[0] }}{% endgeneration %}
    {% endif %}
    {{- eos_token if message.name is defined else 'nameless' }}
{% endfor %}
{{ strftime_now('%Y') | length }}
{% if add_generation_prompt %}<go>{% endif %}
"""


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("chat", CHATS)
def test_smollm_renders_as_in_transformers(chat: list, add_generation_prompt: bool, default_model: Path) -> None:
    from transformers import AutoTokenizer

    ours, theirs = Tokenizer.load(default_model), AutoTokenizer.from_pretrained(default_model)
    want = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=add_generation_prompt)
    text = ours.apply_chat_template(chat, add_generation_prompt)
    assert text == want
    assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("chat", [*CHATS, [{"role": "user", "content": "x", "name": None}]])
def test_a_rich_template_renders_as_in_transformers(chat: list, byte_level: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    special = {"bos_token": "<|end|>", "eos_token": "<|end|>"}
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(byte_level / "tokenizer.json"), chat_template=RICH, **special)
    want = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(RICH, special).apply(chat) == want


LOOP = "{% for part in CONTENT %}<{{ part['text'] }}>{% endfor %}"


@pytest.mark.parametrize(
    "content",
    [
        "message['content']",
        "message.content",
        "message['content'] | selectattr('type', 'equalto', 'text')",
        "content",
    ],
)
def test_a_template_that_reads_parts_gets_the_text_as_a_part(content: str) -> None:
    body = "{% set content = message.content %}" + LOOP.replace("CONTENT", content)
    template = ChatTemplate("{% for message in messages %}" + body + "{% endfor %}", {})
    assert template.apply(CHATS[2]) == "<a><b><c>"
    assert template.apply(CHATS[2][:2], continue_final_message=True) == "<a><b"


@pytest.mark.parametrize(
    "body",
    [
        "{% if message.content is string %}{{ message.content }}{% else %}" + LOOP + "{% endif %}",
        "{% for word in message.content.split('|') %}{{ word }}{% endfor %}",
    ],
)
def test_a_template_that_reads_texts_gets_texts(body: str) -> None:
    body = body.replace("CONTENT", "message.content")
    assert ChatTemplate("{% for message in messages %}" + body + "{% endfor %}", {}).apply(CHATS[2]) == "abc"


def test_a_refusal_is_a_value_error_with_the_templates_message() -> None:
    with pytest.raises(ValueError, match=r"^Unknown role: critic$"):
        ChatTemplate(RICH, {}).apply([{"role": "critic", "content": "x"}])


@pytest.mark.parametrize(
    ("source", "chat"),
    [
        ("{{ messages[0].content + 1 }}", CHATS[0]),
        ("{{ messages[0].missing.field }}", CHATS[0]),
        ("{{ messages[0].content.__class__.__mro__ }}", CHATS[0]),  # the sandbox
        ("{{ messages.append(1) }}", CHATS[0]),  # it is immutable
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", CHATS[0]),
        ("{{ messages[0].role * 100_000_000_000_000 }}", CHATS[0]),
        ("x", []),
    ],
)
def test_messages_that_cannot_be_rendered_are_a_value_error(source: str, chat: list) -> None:
    with pytest.raises(ValueError, match=r"cannot render|at least one"):
        ChatTemplate(source, {}).apply(chat)


def test_the_places_of_templates(tmp_path: Path) -> None:
    chat = CHATS[0]
    assert ChatTemplate.load(tmp_path) is None
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ bos_token }}default"}]
    config = {"chat_template": named, "bos_token": {"content": "<s>"}, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = ChatTemplate.load(tmp_path)
    assert loaded is not None
    assert loaded.apply(chat) == "<s>default"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}file\n")
    loaded = ChatTemplate.load(tmp_path)
    assert loaded is not None
    assert loaded.apply(chat) == "<s>file"


def test_a_model_without_a_template_is_an_error(byte_level: Path) -> None:
    tokenizer = Tokenizer.load(byte_level)
    assert not tokenizer.has_chat_template
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.apply_chat_template(CHATS[0])


def test_a_broken_template_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="not valid: line 2: "):
        ChatTemplate("{{ 1 }}\n{% for %}", {})


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_the_file_of_a_broken_template_is_named(name: str, tmp_path: Path) -> None:
    source = "{{ 1 }}\n{% for %}"
    (tmp_path / name).write_text(source if name.endswith(".jinja") else json.dumps({"chat_template": source}))
    with pytest.raises(ModelError, match=rf"{name}: the chat template is not valid: line 2: "):
        ChatTemplate.load(tmp_path)
