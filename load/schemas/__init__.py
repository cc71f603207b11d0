"""Grammars of JSON schemas, measured on suites of schemas that others collected."""
