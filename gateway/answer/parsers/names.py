"""Names of tools, as texts have them without quotes."""

from __future__ import annotations

import re
import string

NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_-.:")
NAME = re.compile(r"[A-Za-z0-9_.:-]+")
LONGEST_NAME = 256  # characters; what is longer is no name
LONGEST_HEAD = 512  # characters before the arguments of a call, and of the tag of a parameter
