"""The texts of a request for vectors as token ids: the model's prompts, pairs of texts, what is cut off."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import ApiError, Kind
from gateway.model import ServedModel
from services.models.pooling import Pooling
from services.text.tokenizer import EncodedText, Text

# How the model card of Qwen3-Reranker asks about a pair.
QUESTION = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class VectorInputs:
    """Reads texts for a model that makes vectors."""

    def __init__(self, model: ServedModel, pooling: Pooling, chat_template: bool) -> None:
        """`chat_template`: the server's operator has given one, which writes pairs for a yes/no reranker."""
        self._model, self._pooling, self._chat_template = model, pooling, chat_template

    def encoded(
        self, texts: Sequence[Text], param: str, keep: int | None = None, special: bool = True
    ) -> list[EncodedText]:
        """The token ids of `texts`; with `keep`, at most so many of each, -1: as many as the model takes. Raises
        ApiError for a text that is longer than the model takes."""
        if self._pooling.lower_case:
            texts = [text.lower() if isinstance(text, str) else (text[0].lower(), text[1].lower()) for text in texts]
        if keep is None:  # tokenizing a very long text takes seconds
            for text in texts:
                parts = [text] if isinstance(text, str) else text
                self.check_length(sum(map(self._model.tokenizer.least_tokens, parts)), param, "at least ")
        found = self._model.tokenizer.encode_texts(texts, special, self._most(keep))
        for one in found:
            self.check_length(len(one.ids), param)
        return found

    def mixed(
        self, values: Sequence[str | list[int]], keep: int | None, special: bool, prompt: str = ""
    ) -> list[EncodedText]:
        """The token ids of the field `input`: texts, with `prompt` before each, or token ids; see `encoded`."""
        texts = iter(self.encoded([prompt + one for one in values if isinstance(one, str)], "input", keep, special))
        return [next(texts) if isinstance(one, str) else self.given(one, "input", keep) for one in values]

    def given(self, ids: list[int], param: str, keep: int | None) -> EncodedText:
        """A text that the client has sent as token ids; see `encoded`."""
        kept = ids[: self._most(keep)]
        self.check_length(len(kept), param)
        return EncodedText(kept)

    def _most(self, keep: int | None) -> int | None:
        return self._model.info.max_model_len if keep is not None and keep < 0 else keep

    def check_length(self, count: int, param: str, bound: str = "") -> None:
        """Raises ApiError for more tokens than the model takes, or for none unless `count` is a `bound`."""
        longest = self._model.info.max_model_len
        if count > longest:
            text = f"This model's maximum length of a text is {longest} tokens, but a text in '{param}' has {bound}"
            advice = "shorten it, or send 'truncate_prompt_tokens': -1"
            raise ApiError(Kind.CONTEXT_LENGTH, f"{text}{count}; {advice}.", param)
        if not count and not bound:
            raise ApiError(Kind.INVALID, f"Invalid '{param}': a text has no tokens.", param)

    def prompt(self, name: str | None) -> str:
        """What is written before a text: the prompt of this name, or the model's default one. Raises ApiError."""
        prompts = self._pooling.prompts
        if name is None:
            return prompts.get(self._pooling.default_prompt, "")
        if name not in prompts:
            known = ", ".join(f"'{known}'" for known in prompts) or "no prompts"
            text = f"Invalid 'prompt_name': the model has no prompt '{name[:100]}', it has {known}."
            raise ApiError(Kind.INVALID, text, "prompt_name")
        return prompts[name]

    def pairs(
        self, pairs: Sequence[tuple[str, str]], instruction: str | None, param: str, keep: int | None
    ) -> list[EncodedText]:
        """The token ids of pairs of texts as a reranker reads them; see `encoded`."""
        if not self._pooling.yes_no:
            return self.encoded(pairs, param, keep)
        asked = [self._asked(first, second, instruction) for first, second in pairs]
        plain = iter(self.encoded([text for text, mark in asked if not mark], param, keep, special=False))
        return [self._protected(text, mark, param, keep) if mark else next(plain) for text, mark in asked]

    def _asked(self, first: str, second: str, instruction: str | None) -> tuple[str, str]:
        """How a reranker of yes and no is asked about a pair, and the mark in what is spelled like a control token; ""
        if nothing is."""
        told = {"role": "instruction", "content": INSTRUCTION if instruction is None else instruction}
        messages = [{"role": "query", "content": first}, {"role": "document", "content": second}, told]
        mark = ""
        if not self._model.allow_control_tokens:
            messages, _, mark = self._model.tokenizer.protected(messages, (), lambda text: ())
        *texts, told = messages
        if self._chat_template:
            variables = {} if instruction is None else {"instruction": told["content"]}
            return self._model.tokenizer.apply_chat_template(texts, kwargs=variables), mark
        query, document = (text["content"] for text in texts)
        instructed = f"<Instruct>: {told['content'] or INSTRUCTION}\n"
        return f"{QUESTION}{instructed}<Query>: {query}\n<Document>: {document}{ANSWER}", mark

    def _protected(self, text: str, mark: str, param: str, keep: int | None) -> EncodedText:
        """The token ids of a text with marks, which are no part of it."""
        if keep is None:
            self.check_length(self._model.tokenizer.least_tokens(text.replace(mark, "")), param, "at least ")
        return self.given(self._model.tokenizer.encode_protected(text, mark, False), param, keep)
