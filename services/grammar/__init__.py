"""Grammars that constrain the output of a request, by llguidance: which tokens may follow the tokens so far.

The gateway checks a grammar here before it accepts a request, and the engine computes masks from it, so both import
this package. It imports neither torch nor transformers.
"""

from services.grammar.compiler import Grammars
from services.grammar.matcher import Matcher

__all__ = ["Grammars", "Matcher"]
