"""Parsers: how the text of an answer is read: as content, reasoning, and calls of tools."""
