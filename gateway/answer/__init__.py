"""Tokens become answers: what the APIs of OpenAI and Anthropic have in common."""
