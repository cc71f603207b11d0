"""The vocabulary of a GGUF file as tokenizer.json, and the tokens that end its answers.

A file holds pieces, merges and a few ids. How text is split, which tokens are added around it and which tokens end an
answer follows from names. The rules are llama.cpp's (src/llama-vocab.cpp), with two exceptions: the expressions that
split text are those of the models' own tokenizer.json where llama.cpp approximates them, and an id that the file does
not name is taken from no other model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from services.errors import ModelError

Kind = gguf.TokenType

_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_ASCII_MARKS = r"[!-/:-@\[-`{-~]"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(suffix: str, digits: str) -> str:
    """Words that end before the next capital, of GPT-4o and of Mistral's Tekken."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{suffix}|{before}{_UPPER}+{_LOWER}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"


def _deepseek(marks: str = r" ?[\p{P}\p{S}]+[\r\n]*", blanks: str = _BLANKS) -> tuple[str, ...]:
    word = rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    return (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", f"{word}|{marks}|{blanks}")


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_BLANKS}"
_QWEN2 = rf"{_SUFFIX}|{_WORD}|\p{{N}}|{_MARKS}|{_BLANKS}"
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
_GPT4O = _cased(f"{_SUFFIX}?", r"\p{N}{1,3}")
_LINES = r"[^\n]+|\n+"


@dataclass(frozen=True, slots=True)
class Splitter:
    """How a vocabulary of byte pairs divides text before it merges: by each expression in turn.

    `whole_words`: a part that is a token stays one, whatever the merges make of it. `add_bos`: unless the file says.
    `bytes`: pieces are written in GPT-2's alphabet of bytes; if not, in plain text with a mark for spaces.
    """

    expressions: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    bytes: bool = True


_DIGITS_APART = Splitter((r"\p{N}", _GPT2))
_AS_LLAMA3 = Splitter((_LLAMA3,), whole_words=True, add_bos=True)
# by `tokenizer.ggml.pre`; names of encoders, which embed text, are absent
SPLITTERS = {
    "default": Splitter((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _AS_LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Splitter((_LLAMA3,))),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        Splitter((_QWEN2,)),
    ),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion", "exaone4"),
        Splitter((_GPT2,)),
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS_APART
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), Splitter((_GPT4O,))),
    "tekken": Splitter((_cased("", r"\p{N}"),), whole_words=True, add_bos=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), Splitter((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
    "qwen35": Splitter(
        (rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",)
    ),
    "minicpm5": Splitter((r"\p{N}{1,3}", rf"{_SUFFIX}|{_WORD}|\p{{N}}+|{_MARKS}|{_BLANKS}"), whole_words=True),
    "jais-2": Splitter(
        (
            rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|\s*[\r\n]+|"
            + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
            + r"|\s{1,2}(?!\S)|\s",
        )
    ),
    "ufakzeka": Splitter((rf"{_WORD}|\p{{N}}|{_MARKS}|{_BLANKS}",)),
    "laguna": Splitter((_LINES, _QWEN2)),
    "seed-coder": Splitter((rf"{_SUFFIX}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",)),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        Splitter((rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_MARKS}|\s*[\r\n]|\s+(?!\S)|\s+",)),
    ),
    "exaone-moe": Splitter(
        (
            rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), Splitter(_deepseek())),
    "spark2_5": Splitter((*_deepseek(r" ?[\p{P}\p{S}]+", r"[\r\n]|\s+(?!\S)|\s+"), r"\p{N}")),
    "deepseek-llm": Splitter(
        (
            r"[\r\n]",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-\ud7ff]+",
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Splitter((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")),
    "youtu": Splitter(
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
            _cased(f"{_SUFFIX}?", r"\p{N}"),
        ),
        whole_words=True,
    ),
    "granite-docling": Splitter((_GPT2,)),
    "falcon": Splitter((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), Splitter((_BLOOM,))),
    "viking": Splitter((_BLOOM, r"\p{N}")),
    "chameleon": Splitter(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "gemma4": Splitter((_LINES,), whole_words=True, add_bos=True, bytes=False),
    "sarvam-moe": Splitter((_LINES,), bytes=False),
}

ENDS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
        *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
        # of code that is filled in: what follows belongs to another file
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>"),
        *("<REPO>", "<reponame>", "<|file_sep|>"),
    }
)
_END_IDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# an end that is none where the vocabulary has all of these: there it closes a part of an answer, or is plain text
_NO_END = (
    ("<|end|>", {"<|return|>", "<|call|>"}),
    ("<|end|>", {"<|flush|>", "<|calls|>"}),
    ("<|end|>", {"<|flush|>", "<|call|>"}),
    ("</s>", {"<|tool_response>"}),
)
_NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # transformers' names, and those of files
_OF_SENTENCEPIECE = {"bos": 1, "eos": 2, "unk": 0}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The metadata of a file that describe its tokenizer. `read` raises ModelError for one that is not served."""

    metadata: Mapping[str, Any]  # without the prefix `tokenizer.`
    model: str  # `gpt2`, `gemma4` (byte pairs) or `llama` (SentencePiece)
    splitter: Splitter | None  # of byte pairs
    pieces: list[str]
    kinds: list[int]
    ends: list[int]  # the ids that end an answer, the end of text first

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Vocabulary:
        """The vocabulary in these fields of a GGUFReader. Raises ModelError."""
        metadata = {
            name.removeprefix("tokenizer."): field.contents()
            for name, field in fields.items()
            if name.startswith("tokenizer.") or name == "general.name"
        }
        model, pieces = metadata.get("ggml.model", "none"), metadata.get("ggml.tokens")
        if model in ("none", "no_vocab") or not pieces:
            raise ModelError(
                "it has no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens); convert the model again with one"
            )
        if model not in ("llama", "gpt2", "gemma4"):
            raise ModelError(
                f"its tokenizer is of the kind {model!r} (tokenizer.ggml.model), which is not served; "
                "served are llama (SentencePiece), gpt2 and gemma4 (byte pairs)"
            )
        if model != "llama" and "ggml.merges" not in metadata:
            raise ModelError("its tokenizer has no merges (tokenizer.ggml.merges)")
        kinds = [int(kind) for kind in metadata.get("ggml.token_type") or [Kind.NORMAL] * len(pieces)]
        if len(kinds) != len(pieces) or len(set(pieces)) + max(0, pieces.count("") - 1) != len(pieces):
            raise ModelError(f"its tokenizer has {len(pieces)} tokens, {len(set(pieces))} of them different")
        splitter = None if model == "llama" else _splitter("gemma4" if model == "gemma4" else metadata.get("ggml.pre"))
        ends = _ends(metadata, model, pieces, kinds)
        for id in ends:  # some files have them as plain pieces
            kinds[id] = Kind.CONTROL
        return cls(metadata, model, splitter, pieces, kinds, ends)

    @property
    def warning(self) -> str | None:
        """What a user should know about the tokens of this model whenever it is served."""
        if self.model == "gpt2" and not self.metadata.get("ggml.pre"):
            return (
                "the file does not say how its vocabulary splits text (tokenizer.ggml.pre); it is split in llama.cpp's "
                "default way, so that some texts may get other tokens than in training; gguf-new-metadata "
                "--pre-tokenizer NAME makes a file that says it"
            )
        return None

    def named(self) -> dict[str, str]:
        """The spelling of `bos`, `eos`, `unk` and `pad`, of those that the model has."""
        ids = {name: _id(self.metadata, name, self.model, self.kinds) for name in _NAMED}
        return {name: self.pieces[id] for name, id in ids.items() if id is not None}

    def save(self, folder: Path, length: int) -> None:
        """Write tokenizer.json, and tokenizer_config.json with the chat templates. `length`: of the longest request."""
        self._tokenizer().save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
        config |= {f"{name}_token": piece for name, piece in self.named().items()}
        config |= {"clean_up_tokenization_spaces": False}
        if templates := self._templates():
            config["chat_template"] = templates
        text = json.dumps(config, ensure_ascii=False, indent=2)
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

    def _templates(self) -> str | list[dict[str, str]] | None:
        """The chat template, or those that have names, as tokenizer_config.json has them."""
        default, others = self.metadata.get("chat_template"), "chat_template."
        named = {n.removeprefix(others): text for n, text in self.metadata.items() if n.startswith(others)}
        if not named or default is None:
            return default
        return [{"name": name, "template": text} for name, text in ({"default": default} | named).items()]

    def _tokenizer(self) -> Tokenizer:
        tokenizer = self._sentencepiece() if self.splitter is None else self._byte_pairs(self.splitter)
        strips = "phi-3" in (name := str(self.metadata.get("general.name", "")).lower()) or "phi3" in name
        special = (Kind.CONTROL, Kind.UNKNOWN)
        added = [
            AddedToken(
                piece,
                rstrip=strips and piece not in ("<unk>", "<s>", "<|endoftext|>"),
                normalized=False,
                special=kind in special,
            )
            for piece, kind in zip(self.pieces, self.kinds, strict=True)
            if piece and kind in (*special, Kind.USER_DEFINED)
        ]
        tokenizer.add_tokens(added)  # in one call: each takes time for all tokens before
        self._add_ends(tokenizer)
        return tokenizer

    def _add_ends(self, tokenizer: Tokenizer) -> None:
        """Tokens around each prompt: BOS, and EOS if the file says so."""
        named, wanted = self.named(), {"bos": self.model == "llama", "eos": False}
        if self.splitter is not None:
            wanted["bos"] = self.splitter.add_bos
        for name, default in wanted.items():
            wanted[name] = bool(self.metadata.get(f"ggml.add_{name}_token", default))
            if wanted[name] and name not in named and f"ggml.add_{name}_token" in self.metadata:
                raise ModelError(f"its add_{name}_token is true, but it names no {name}_token_id within its vocabulary")
        wanted["bos"] |= self.splitter is SPLITTERS["gemma4"]
        first, last = ([named[name]] if wanted[name] and name in named else [] for name in ("bos", "eos"))
        if first or last:
            ids = [(piece, self.pieces.index(piece)) for piece in dict.fromkeys(first + last)]
            tokenizer.post_processor = processors.TemplateProcessing([*first, "$A", *last], None, ids)

    def _byte_pairs(self, splitter: Splitter) -> Tokenizer:
        merges = [_pair(merge) for merge in self.metadata["ggml.merges"]]
        vocabulary = {piece: id for id, piece in enumerate(self.pieces)}
        known = [pair for pair in merges if pair[0] in vocabulary and pair[1] in vocabulary]
        known = [pair for pair in known if "".join(pair) in vocabulary]
        model = models.BPE(vocabulary, known, ignore_merges=splitter.whole_words, byte_fallback=not splitter.bytes)
        tokenizer = Tokenizer(model)
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(each), "isolated") for each in splitter.expressions
        ]
        if splitter.bytes:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
            tokenizer.decoder = decoders.ByteLevel()
        else:
            tokenizer.normalizer = normalizers.Replace(" ", "▁")
            tokenizer.decoder = _spaces_and_bytes()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        return tokenizer

    def _sentencepiece(self) -> Tokenizer:
        vocabulary = {piece: id for id, piece in enumerate(self.pieces)}
        unknown = self.named().get("unk")
        scores = self.metadata.get("ggml.scores") or [0.0] * len(self.pieces)
        plain = {p for p, kind in zip(self.pieces, self.kinds, strict=True) if kind in (Kind.NORMAL, Kind.UNUSED)}
        pieces = [self.pieces[id] for id in np.argsort(-np.array(scores), kind="stable")]
        pairs = [
            (piece[:cut], piece[cut:])
            for piece in pieces
            if piece in plain
            for cut in range(1, len(piece))
            if piece[:cut] in plain and piece[cut:] in plain
        ]
        tokenizer = Tokenizer(models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        prefix = bool(self.metadata.get("ggml.add_space_prefix", True))
        # each text behind a special token gets the space, too
        before = [normalizers.Prepend("▁")] if prefix else []
        tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
        tokenizer.decoder = _spaces_and_bytes(prefix)
        return tokenizer


def _splitter(name: str | None) -> Splitter:
    if (name or "default") not in SPLITTERS:
        raise ModelError(
            f"its vocabulary splits text in the way {name!r} (tokenizer.ggml.pre), which is not known; if it is one of "
            f"{', '.join(sorted(SPLITTERS))}, write it into the file: gguf-new-metadata --pre-tokenizer NAME"
        )
    return SPLITTERS[name or "default"]


def _ends(metadata: Mapping[str, Any], model: str, pieces: list[str], kinds: list[int]) -> list[int]:
    """By id and by name, as llama.cpp has them: many files name the end of text only."""
    ids = [_id(metadata, name, model, kinds) for name in _END_IDS]
    ids += [id for id, piece in enumerate(pieces) if piece in ENDS]
    ends = list(dict.fromkeys(id for id in ids if id is not None))
    spelled = {pieces[id] for id in ends}
    no_end = {piece for piece, others in _NO_END if others <= spelled}
    return [id for id in ends if pieces[id] not in no_end]


def _id(metadata: Mapping[str, Any], name: str, model: str, kinds: list[int]) -> int | None:
    """The id that the file gives to a token with a role; for SentencePiece, the usual one if it is a special token."""
    id = metadata.get(f"ggml.{_NAMED.get(name, name)}_token_id")
    if id is not None and 0 <= id < len(kinds):
        return int(id)
    usual = _OF_SENTENCEPIECE.get(name) if model == "llama" else None
    fits = usual is not None and usual < len(kinds) and kinds[usual] in (Kind.CONTROL, Kind.UNKNOWN)
    return usual if fits else None


def _pair(merge: str) -> tuple[str, str]:
    """The two pieces of a merge, of which the first may begin with a space."""
    at = merge.find(" ", 1)
    return merge[:at], merge[at + 1 :]


def _spaces_and_bytes(strip: bool = False) -> Any:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
