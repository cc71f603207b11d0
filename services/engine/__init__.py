"""Runs one iteration of a model over a flat batch. May import torch; of the other services only models and messages."""
