"""Types of settings."""

from __future__ import annotations

from enum import StrEnum


class Section(StrEnum):
    """What settings are about, in the order in which `--help` and the documents show them.

    In the annotation of a setting: this setting and those below it, up to the next mark, are in the section.
    """

    API = "Model and API"
    ENGINE = "Engine"
    SCHEDULING = "Scheduling"
    POOL = "Pool and durability"
    LIMITS = "Limits and keys"
    TESTING = "Testing"
