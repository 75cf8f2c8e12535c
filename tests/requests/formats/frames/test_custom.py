"""Frames of the operator's own: texts with holes, and separators."""

import pytest

from ragboost.config import FrameSettings, Settings
from ragboost.requests.formats.frames import scan
from tests.requests.formats.frames.texts import LEASE, NOISE, PETS, RENT, prompt, texts_of
from tests.requests.formats.rewriting import find, reorder, text_of, user

KB = FrameSettings(name="kb", start="<<<KB", end="KB>>>")
CONTEXT = FrameSettings(name="context", start="[CONTEXT {n}]:", end="[END CONTEXT {n}]")
NAMED = FrameSettings(name="named", start="(({name}::", end="::{name}))")
STUFF = FrameSettings(name="stuff", start="at the end.\n\n", end="\n\nQuestion:", separator="\n\n")


def settings(*frames: FrameSettings) -> Settings:
    return Settings(formats={"frames": frames}, hints={"order": False})


def test_documents_between_marks_of_the_operator_are_found() -> None:
    text = "Facts:\n<<<KB one\nKB>>>\n<<<KB two\nKB>>>\nWhich?"
    assert find(user(text)) is None
    moved = text_of(reorder(user(text), [1, 0], settings(KB)))
    assert moved == "Facts:\n<<<KB two\nKB>>>\n<<<KB one\nKB>>>\nWhich?"


def test_numbers_in_holes_stay_at_their_places_and_names_move() -> None:
    def numbered(*documents: str) -> str:
        blocks = [f"[CONTEXT {i}]:\n{t}\n[END CONTEXT {i}]" for i, t in enumerate(documents)]
        return prompt("\n".join(blocks))

    def named(*documents: str) -> str:
        return prompt("\n".join(f"(({t[:5]}::{t}::{t[:5]}))" for t in documents))

    for frame, write in ((CONTEXT, numbered), (NAMED, named)):
        body = user(write(LEASE, RENT, PETS))
        assert text_of(reorder(body, [2, 0, 1], settings(frame))) == write(PETS, LEASE, RENT)


def test_a_separator_divides_what_stands_between_the_marks() -> None:
    text = f"Answer the question at the end.\n\n{LEASE}\n\n{RENT}\n\nQuestion: which?"
    moved = text_of(reorder(user(text), [1, 0], settings(STUFF)))
    assert moved == f"Answer the question at the end.\n\n{RENT}\n\n{LEASE}\n\nQuestion: which?"


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (KB, f"<<<KB {LEASE} KB>>>\n<<<KB {RENT}, see <<<KB KB>>>"),
        (KB, f"<<<KB {LEASE} KB>>>\n<<<KB {RENT} KB>>> there KB>>>"),
        (KB, f"<<<KB {LEASE} KB>>>\nand\n<<<KB {RENT} KB>>>"),
        (STUFF, f"at the end.\n\n{LEASE}\n\nQuestion: why?\n\n{RENT}\n\nQuestion: which?"),
        (STUFF, f"at the end.\n\n{LEASE} at the end.\n\n{RENT}\n\nQuestion: which?"),
    ],
)
def test_marks_without_a_place_leave_the_list_alone(frame: FrameSettings, text: str) -> None:
    result = scan(text, frames=[frame])
    assert (result.groups, result.frame) == ((), frame.name)
    assert result.problem


def test_a_frame_of_the_operator_decides_alone() -> None:
    text = prompt(f"<<<KB <doc>{LEASE}</doc>\n<doc>{RENT}</doc> KB>>>\n<<<KB {PETS} KB>>>")
    (texts,) = texts_of(scan(text, frames=[KB]))
    assert texts[1] == PETS
    other = prompt(f"<doc>{LEASE}</doc>\n<doc>{NOISE}</doc>")
    assert texts_of(scan(other, frames=[KB])) == [[LEASE, NOISE]]


def test_the_older_name_is_read() -> None:
    older = Settings(formats={"delimiters": [KB.model_dump()]})  # type: ignore[arg-type]
    assert older.formats.frames == (KB,)


def test_a_mark_needs_text_beside_its_holes() -> None:
    with pytest.raises(ValueError, match="needs text beside its holes"):
        FrameSettings(name="x", start="{n} ", end="{name}")
