"""The check of the packages runs tests that exist."""

from pathlib import Path

import pytest

from scripts.check_packages import LOWEST_TESTS


@pytest.mark.parametrize("name", LOWEST_TESTS)
def test_the_tests_with_the_lowest_dependencies_exist(name: str) -> None:
    assert (Path(__file__).parent / name).exists()
