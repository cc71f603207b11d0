"""What the wheel holds."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from services.version import program_version
from tests.packaging.conftest import KERNELS, PACKAGES, PROJECT, ROOT


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    """The data files too: Lua, C++, texts. A new suffix belongs to package-data in pyproject.toml."""
    files = {path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()}
    expected = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert expected | {KERNELS} <= set(ZipFile(wheel).namelist())


def test_the_wheel_installs_the_packages_and_nothing_beside_them(wheel: Path) -> None:
    top_level = {name.split("/")[0] for name in ZipFile(wheel).namelist()}
    assert top_level == {*PACKAGES, f"orca-{PROJECT['project']['version']}.dist-info"}


def test_the_version_that_is_reported_is_that_of_the_project() -> None:
    assert program_version() == PROJECT["project"]["version"]
