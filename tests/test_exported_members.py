import ragboost


def test_all_is_sorted_and_complete() -> None:
    public = set(ragboost._HOME) | {"__version__"}

    assert ragboost.__all__ == sorted(ragboost.__all__)
    assert set(ragboost.__all__) == public


def test_every_exported_name_is_there_under_its_own_name() -> None:
    for name in set(ragboost.__all__) - {"__version__"}:
        assert getattr(ragboost, name).__name__ == name


def test_dir_lists_the_exported_names() -> None:
    assert set(ragboost.__all__) <= set(dir(ragboost))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(ragboost, "NoSuchName")
