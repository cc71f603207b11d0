"""Tokens become answers: what all APIs have in common."""
