"""The live page and its feed."""
