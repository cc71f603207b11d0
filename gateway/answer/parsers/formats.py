"""The formats of all families, by vLLM's names of their parsers.

The texts are those that the chat templates of the families write.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.answer.parsers.call_format import (
    GEMMA,
    PYTHON,
    PYTHON_JSON,
    CallFormat,
    JsonObject,
    Literals,
    NamedJson,
    Xml,
)
from gateway.answer.parsers.thinking import ReasoningFormat

JSON = JsonObject()
HERMES = CallFormat(JSON, "<tool_call>", "\n", "\n", "</tool_call>", separator="\n")
QWEN_XML = Xml("<function={name}>\n", "<parameter={key}>\n{value}\n</parameter>\n", "</function>")
QWEN = CallFormat(QWEN_XML, "<tool_call>", "\n", "\n", "</tool_call>", separator="\n", begins_bare=True)
GLM = Xml("{name}\n", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
DEEPSEEK = CallFormat(
    NamedJson(
        "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>", "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    ),
    "<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    listed=True,
)
DSML = CallFormat(
    Xml(
        '<｜DSML｜invoke name="{name}">\n',
        '<｜DSML｜parameter name="{key}" string="{is_string}">{value}</｜DSML｜parameter>\n',
        "</｜DSML｜invoke>",
    ),
    "<｜DSML｜function_calls>",
    "\n",
    "\n",
    "</｜DSML｜function_calls>",
    listed=True,
    separator="\n",
)
MISTRAL = NamedJson("{name}{call_id}[ARGS]", "[ARGS]")
JSON_LIST = CallFormat(JSON, "<tool_calls>", "[", "]", "</tool_calls>", listed=True, separator=", ")
PYTHONIC = CallFormat(Literals(PYTHON), "", "[", "]", listed=True, separator=", ", bare="[")

CALL_FORMATS: dict[str, CallFormat] = {
    "apertus": CallFormat(
        JsonObject(""), "<|tools_prefix|>", "[", "]", "<|tools_suffix|>", listed=True, separator=", "
    ),
    "cohere_command3": CallFormat(
        JsonObject("tool_name", "parameters", '"tool_call_id": "{index}", '),
        "<|START_ACTION|>",
        "[\n    ",
        "\n]",
        "<|END_ACTION|>",
        listed=True,
        separator=",\n    ",
    ),
    "deepseek_v3": replace(
        DEEPSEEK,
        call=NamedJson(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
            "```json",
            "<｜tool▁call▁begin｜>",
            "\n```<｜tool▁call▁end｜>",
        ),
        separator="\n",
    ),
    "deepseek_v31": DEEPSEEK,
    "deepseek_v32": DSML,
    "deepseek_v4": replace(DSML, begin="<｜DSML｜tool_calls>", end="</｜DSML｜tool_calls>"),
    "gemma4": CallFormat(Literals(GEMMA, "call:", "{", ":", "}"), "<|tool_call>", end="<tool_call|>"),
    "glm45": CallFormat(GLM, "<tool_call>", end="</tool_call>", separator="\n"),
    "glm47": CallFormat(
        Xml("{name}", "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"), "<tool_call>", end="</tool_call>"
    ),
    "granite": CallFormat(JSON, "<|tool_call|>", "[", "]", listed=True, separator=", "),
    "granite-20b-fc": CallFormat(JSON, "<function_call>", " ", separator="\n"),
    "hermes": HERMES,
    "hunyuan_a13b": JSON_LIST,
    "internlm": CallFormat(
        JsonObject(arguments="parameters"), "<|action_start|><|plugin|>", "\n", end="<|action_end|>", single=True
    ),
    "jamba": replace(JSON_LIST, before="[\n    ", after="\n]\n", separator=",\n    "),
    "kimi_k2": CallFormat(
        NamedJson(
            "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
        ),
        "<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
        listed=True,
    ),
    "lfm2": replace(PYTHONIC, begin="<|tool_call_start|>", end="<|tool_call_end|>", bare=""),
    "llama3_json": CallFormat(
        JsonObject(arguments="parameters"), single=True, bare="{", needs_arguments=True, also_begin="<|python_tag|>"
    ),
    "llama4_pythonic": replace(PYTHONIC, also_begin="<|python_start|>", also_end="<|python_end|>"),
    "minimax": replace(JSON_LIST, before="\n", after="\n", separator="\n"),
    "minimax_m2": CallFormat(
        Xml('<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>"),
        "<minimax:tool_call>",
        "\n",
        "\n",
        "</minimax:tool_call>",
        listed=True,
        separator="\n",
    ),
    "mistral": CallFormat(JSON, "[TOOL_CALLS]", " [", "]", listed=True, separator=", ", also=MISTRAL),
    "mistral_v11": CallFormat(MISTRAL, "[TOOL_CALLS]"),
    "nemotron_json": replace(JSON_LIST, begin="<TOOLCALL>", end="</TOOLCALL>"),
    "olmo3": CallFormat(
        Literals(PYTHON_JSON), "<function_calls>", "\n", "\n", "</function_calls>", listed=True, separator="\n"
    ),
    "phi4_mini_json": CallFormat(JSON, "functools", "[", "]", listed=True, separator=", "),
    "pythonic": PYTHONIC,
    "qwen3_coder": QWEN,
    "seed_oss": replace(
        QWEN,
        call=replace(QWEN_XML, parameter="<parameter={key}>{value}</parameter>\n"),
        begin="<seed:tool_call>",
        end="</seed:tool_call>",
        begins_bare=False,
    ),
    "smollm2": CallFormat(JSON, "<tool_call>", "[", "]", "</tool_call>", listed=True, separator=", "),
    "step3p5": replace(QWEN, separator=""),
}
CALL_FORMATS["qwen3_xml"] = QWEN

# what a chat template has that writes calls in a format: all of these texts; the first format counts
SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai", ("<|channel|>", "<|message|>", "functions.")),
    ("mistral_v11", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("gemma4", ("<|tool_call>call:",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("deepseek_v32", ("｜DSML｜", "function_calls")),
    ("deepseek_v4", ("｜DSML｜", "tool_calls>")),
    ("minimax_m2", ("<minimax:tool_call>", '<invoke name="', "<parameter name=")),
    ("seed_oss", ("<seed:tool_call>",)),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("glm45", ("<tool_call>", "\n<arg_key>", "\n<arg_value>")),
    ("glm47", ("<tool_call>", "<arg_key>", "<arg_value>")),
    ("cohere_command3", ("<|START_ACTION|>", '"tool_name"')),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("lfm2", ("List of tools: [", "<|im_start|>")),
    ("apertus", ("<|tools_prefix|>",)),
    ("olmo3", ("<function_calls>\\n", "pythonic")),
    ("internlm", ("<|action_start|><|plugin|>",)),
    ("nemotron_json", ("<TOOLCALL>[",)),
    ("hunyuan_a13b", ("<tool_calls>[",)),
    ("jamba", ("<tool_calls>\\n[",)),
    ("minimax", ("<tool_calls>\\n",)),
    ("granite-20b-fc", ("<function_call> {",)),
    ("phi4_mini_json", ("functools[",)),
    ("llama4_pythonic", ("[func_name1(", "<|header_start|>")),
    ("pythonic", ("[func_name1(",)),
    ("smollm2", ("<tool_call>[",)),
    ("", ("<tool_call>", "minimax[>[")),  # MiniMax M3, whose calls have tags for each value
    ("hermes", ("<tool_call>",)),
    ("granite", ("<|tool_call|>",)),
    ("llama3_json", ('{"name": "', '"parameters": ')),
)

THINK = ReasoningFormat()
COHERE = ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")
AS_THINK = ("deepseek_r1", "deepseek_v3", "glm45", "kimi_k2", "minimax_m2", "olmo3", "qwen3", "step3", "step3p5")
REASONING_FORMATS: dict[str, ReasoningFormat] = dict.fromkeys(AS_THINK, THINK) | {
    "cohere_command3": COHERE,
    "gemma4": ReasoningFormat("<|channel>thought", "<channel|>"),
    "granite": ReasoningFormat("Here is my thought process:", "Here is my response:"),
    "granite_tags": ReasoningFormat(answer_begin="<response>", answer_end="</response>"),
    "hunyuan_a13b": ReasoningFormat(answer_begin="<answer>", answer_end="</answer>"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningFormat("<seed:think>", "</seed:think>"),
}
REASONING_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai_gptoss", ("<|channel|>", "<|message|>", "analysis")),
    ("cohere_command3", ("<|START_THINKING|>", "<|END_THINKING|>")),
    ("gemma4", ("<|channel>", "<channel|>", "thought")),
    ("mistral", ("[THINK]", "[/THINK]")),
    ("seed_oss", ("</seed:think>",)),
    ("granite_tags", ("</think>", "<response></response>")),
    ("hunyuan_a13b", ("</think>", "<answer>")),
    ("granite", ("Here is my thought process:",)),
    ("deepseek_r1", ("</think>",)),
)


def recognized(template: str, signs: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    """The name of the first format of which `template` has all signs; empty if there is none. Line breaks count as they
    are written in strings of a template, too."""
    return next((name for name, texts in signs if all(_has(template, text) for text in texts)), "")


def _has(template: str, text: str) -> bool:
    return text in template or text.replace("\n", "\\n") in template or text.replace("\\n", "\n") in template
