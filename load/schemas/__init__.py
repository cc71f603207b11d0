"""Measures grammars of JSON schemas on public suites of schemas."""
