"""Tokenizer, chat template, incremental detokenizer and stop strings, without torch or transformers."""

from services.text.chat_template import ChatTemplate
from services.text.detokenizer import Detokenizer
from services.text.stop_strings import StopMatch, StopMatcher
from services.text.token_bytes import TextTables
from services.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "StopMatch", "StopMatcher", "TextTables", "Tokenizer"]
