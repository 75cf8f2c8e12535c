import pytest

from ragboost.util.text_scores import contains, exact_match, word_f1


def test_case_articles_and_punctuation_do_not_count() -> None:
    assert exact_match("The lease.", ["a LEASE"]) == 1.0
    assert exact_match("the lease of Ada", ["lease"]) == 0.0
    assert contains("It is the lease of Ada.", ["Lease of Ada"]) == 1.0


def test_the_best_of_several_right_answers_counts() -> None:
    assert exact_match("Ada", ["Grace", "Ada"]) == 1.0
    assert word_f1("Ada Lovelace", ["Grace", "Ada"]) == pytest.approx(2 / 3)


def test_containment_is_of_whole_words() -> None:
    assert contains("a carpet", ["pet"]) == 0.0
    assert contains("", [""]) == 0.0
    assert contains("anything", []) == 0.0
