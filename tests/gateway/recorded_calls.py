"""Two calls in each format, as the families' chat templates write them, and where the formats are described.

The texts were made for these tests: what a template writes for these two calls. The templates were read in llama.cpp
(`models/templates`, MIT) and vLLM (`examples`, Apache-2.0), whose files name the models that they come from, Harmony in
OpenAI's document of it (`docs/format.md` of openai/harmony, Apache-2.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.answer.parsers.call_format import CallFormat, JsonObject, Literals, NamedJson, Xml
from gateway.answer.parsers.formats import CALL_FORMATS

WEATHER = {"city": 'né "x" </b>', "days": 2, "list": [1, True, None, {"a": "b"}]}
NOW: dict[str, Any] = {}
LIST = '[1, true, null, {"a": "b"}]'
ARGUMENTS = f'{{"city": "né \\"x\\" </b>", "days": 2, "list": {LIST}}}'
OBJECT = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "list": {"type": "array", "items": {}},
    },
    "required": ["city", "days"],
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """`text`: the calls. `of`: a model whose template writes them. `single`: only the first call."""

    text: str
    of: str
    single: bool = False


def _xml(begin: str, end: str, pad: str, between: str = "\n") -> str:
    value = f'<parameter=city>{pad}né "x" </b>{pad}</parameter>\n<parameter=days>{pad}2{pad}</parameter>\n'
    value += f"<parameter=list>{pad}{LIST}{pad}</parameter>\n"
    weather = f"{begin}\n<function=weather>\n{value}</function>\n{end}"
    return f"{weather}{between}{begin}\n<function=now>\n</function>\n{end}"


def _glm(line: str) -> str:
    pairs = (("city", 'né "x" </b>'), ("days", "2"), ("list", LIST))
    written = "".join(f"<arg_key>{k}</arg_key>{line}<arg_value>{v}</arg_value>{line}" for k, v in pairs)
    return f"<tool_call>weather{line}{written}</tool_call>{line}<tool_call>now{line}</tool_call>"


def _dsml(mark: str) -> str:
    d = "｜DSML｜"
    return (
        f'<{d}{mark}>\n<{d}invoke name="weather">\n<{d}parameter name="city" string="true">né "x" </b></{d}parameter>\n'
        f'<{d}parameter name="days" string="false">2</{d}parameter>\n'
        f'<{d}parameter name="list" string="false">{LIST}</{d}parameter>\n</{d}invoke>\n'
        f'<{d}invoke name="now">\n</{d}invoke>\n</{d}{mark}>'
    )


def _list(begin: str, end: str, separator: str = ", ") -> str:
    return f'{begin}{OBJECT}{separator}{{"name": "now", "arguments": {{}}}}{end}'


PYTHON = "weather(city='né \"x\" </b>', days=2, list=[1, True, None, {'a': 'b'}])"
PYTHON_JSON = PYTHON.replace("True", "true").replace("None", "null")
CALLS = {
    "apertus": Recorded(f'<|tools_prefix|>[{{"weather": {ARGUMENTS}}}, {{"now": {{}}}}]<|tools_suffix|>', "Apertus 8B"),
    "cohere_command3": Recorded(
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "weather", "parameters": {ARGUMENTS}}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        "Command R7B, Command A",
    ),
    "deepseek_v3": Recorded(
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{ARGUMENTS}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "DeepSeek V3-0324, R1-0528",
    ),
    "deepseek_v31": Recorded(
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "DeepSeek V3.1",
    ),
    "deepseek_v32": Recorded(_dsml("function_calls"), "DeepSeek V3.2"),
    "deepseek_v4": Recorded(_dsml("tool_calls"), "DeepSeek V4"),
    "gemma4": Recorded(
        '<|tool_call>call:weather{city:<|"|>né "x" </b><|"|>,days:2,list:[1,true,null,{a:<|"|>b<|"|>}]}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        "Gemma 4",
    ),
    "glm45": Recorded(_glm("\n"), "GLM-4.5, GLM-4.6"),
    "glm47": Recorded(_glm(""), "GLM-4.7"),
    "granite": Recorded(_list("<|tool_call|>[", "]"), "Granite 3.0 to 3.3"),
    "granite-20b-fc": Recorded(
        f'<function_call> {OBJECT}\n<function_call> {{"name": "now", "arguments": {{}}}}',
        "Granite 20B FC",
    ),
    "hermes": Recorded(
        f'<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
        "Qwen2.5, Qwen3, QwQ, Hermes, Granite 4",
    ),
    "hunyuan_a13b": Recorded(_list("<tool_calls>[", "]</tool_calls>"), "Hunyuan A13B"),
    "internlm": Recorded(
        f'<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {ARGUMENTS}}}<|action_end|>',
        "InternLM 2.5",
        single=True,
    ),
    "jamba": Recorded(_list("<tool_calls>[\n    ", "\n]\n</tool_calls>", ",\n    "), "Jamba 1.5 to 1.7"),
    "kimi_k2": Recorded(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "Kimi K2",
    ),
    "lfm2": Recorded(f"<|tool_call_start|>[{PYTHON}, now()]<|tool_call_end|>", "LFM2, LFM2.5"),
    "llama3_json": Recorded(f'{{"name": "weather", "parameters": {ARGUMENTS}}}', "Llama 3.1 to 3.3", single=True),
    "llama4_pythonic": Recorded(f"[{PYTHON}, now()]", "Llama 4, by vLLM's template"),
    "minimax": Recorded(_list("<tool_calls>\n", "\n</tool_calls>", "\n"), "MiniMax M1"),
    "minimax_m2": Recorded(
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">né "x" </b></parameter>\n'
        f'<parameter name="days">2</parameter>\n<parameter name="list">{LIST}</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "MiniMax M2",
    ),
    "mistral": Recorded(_list("[TOOL_CALLS] [", "]"), "Mistral 7B v0.3, Nemo"),
    "mistral_v11": Recorded(
        f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]now[ARGS]{{}}", "Devstral, Magistral, Ministral 3, Small 3.2"
    ),
    "nemotron_json": Recorded(_list("<TOOLCALL>[", "]</TOOLCALL>"), "Nemotron Nano v2"),
    "olmo3": Recorded(
        f"<function_calls>\n{PYTHON_JSON}\nnow()\n</function_calls>",
        "OLMo 3",
    ),
    "phi4_mini_json": Recorded(_list("functools[", "]"), "Phi-4-mini, by vLLM's template"),
    "pythonic": Recorded(f"[{PYTHON}, now()]", "Llama 3.2 and Gemma 3, by vLLM's templates"),
    "qwen3_coder": Recorded(_xml("<tool_call>", "</tool_call>", "\n"), "Qwen3-Coder, Qwen3.5, Nemotron 3 Nano"),
    "seed_oss": Recorded(_xml("<seed:tool_call>", "</seed:tool_call>", ""), "Seed-OSS"),
    "smollm2": Recorded(_list("<tool_call>[", "]</tool_call>"), "SmolLM2"),
    "step3p5": Recorded(_xml("<tool_call>", "</tool_call>", "\n", between=""), "Step 3.5 Flash"),
}
CALLS["qwen3_xml"] = CALLS["qwen3_coder"]


def table() -> str:
    """The table of formats in docs/api.md."""
    lines = ["| format | calls | each is | models |", "|---|---|---|---|"]
    for name in sorted(CALLS):
        form = CALL_FORMATS[name]
        ends = " ... ".join(f"`{mark}`" for mark in (form.begin, form.end) if mark) or "the whole answer"
        lines.append(
            f"| `{name}` | {ends} | {_kind(form)} | {CALLS[name].of} |".replace("<|", "<\\|").replace("|>", "\\|>")
        )
    return "\n".join(lines) + "\n"


def _kind(form: CallFormat) -> str:
    match form.call:
        case JsonObject(name, arguments):
            return f'`{{"{name}": ..., "{arguments}": {{...}}}}`' if name else "`{NAME: {...}}`"
        case NamedJson(head):
            return f"`{head.strip()}`, the arguments as JSON".replace("\n", " ")
        case Xml(call, parameter):
            return f"`{call.strip()}`, then `{parameter.strip()}` for each parameter".replace("\n", " ")
        case Literals(_, opening, begin, equals, end):
            return f"`{opening}NAME{begin}KEY{equals}VALUE, ...{end}`"
