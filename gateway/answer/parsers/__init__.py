"""Parsers: how the text of an answer is divided into content, reasoning and calls of tools.

A parser reads detokenized text. What it gives depends on the text only, not on how it is cut into tokens or events, so
that a stream goes on exactly after a death and at any gateway. `registry` has all parsers by vLLM's names.

transformers has a parser of answers too (`transformers.utils.chat_parsing`), which is not used here: it gives the
arguments of a call at its end and not as they are written, raises on a call that is broken, and its import adds 0.5 s
and 17 MB to the start of a gateway.
"""
