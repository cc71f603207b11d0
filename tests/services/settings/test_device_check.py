"""Settings on machines with and without a driver of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.errors import UsageError
from services.settings import device
from services.settings.settings import Settings

ABSENT, PRESENT = "libno-such-driver.so.1", "libc.so.6"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"device": "cuda"}, "^device=cuda: this machine has no driver"),
        ({"device": "cuda", "dtype": "float16"}, "^device=cuda: "),
        ({"dtype": "float16"}, "^dtype=float16 is served on GPUs only"),
    ],
)
def test_a_setting_for_gpus_is_refused_without_a_driver(values: dict[str, str], why: str, tmp_path: Path) -> None:
    settings = Settings(**values)
    with pytest.raises(UsageError, match=why):
        device.check(settings, ABSENT, tmp_path / "kfd")
    device.check(settings, PRESENT, tmp_path / "kfd")
    device.check(settings, ABSENT, tmp_path)  # of another vendor
    device.check(settings.model_copy(update={"null_engine": True}), ABSENT, tmp_path / "kfd")


@pytest.mark.parametrize("values", [{}, {"device": "cpu"}, {"dtype": "bfloat16"}])
def test_other_settings_need_no_driver(values: dict[str, str], tmp_path: Path) -> None:
    device.check(Settings(**values), ABSENT, tmp_path / "kfd")


@pytest.mark.parametrize(
    ("asked", "expected"), [("cuda", (True, True)), ("auto", (False, True)), ("cpu", (False, False))]
)
def test_kernels_of_a_cpu_are_needed_where_no_gpu_is_expected(
    asked: str, expected: tuple[bool, bool], tmp_path: Path
) -> None:
    settings = Settings(device=asked)
    found = [device.expects_gpu(settings, driver, tmp_path / "kfd") for driver in (ABSENT, PRESENT)]
    assert tuple(found) == expected
    assert device.expects_gpu(settings, ABSENT, tmp_path) == expected[1]
