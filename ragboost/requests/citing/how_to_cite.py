"""Tell a text that names a document by its number from one that says how to cite.

`Cite as [1]` is an example of a form. `Cite [1] first` names a document, and so does another
sentence of the same line: `Cite as [1]. Prefer [2].`
"""

import re
from collections.abc import Iterator

_EXAMPLE = re.compile(
    r"\b(?:cit(?:e|es|ed|ing|ation|ations)|e\.g\.|examples?|for instance|such as|zitier\w*|z\. ?B\."
    r"|citez|citar?)(?!\w)|引用|标注|例如",
    re.IGNORECASE,
)
_STYLE = re.compile(  # the same, if the line asks nothing
    r"\b(?:brackets?|format|notation|footnotes?|inline|attribut\w+|referenc(?:e|es|ed|ing)"
    r"|numbered|labell?ed|etc|and so on|Fußnoten?|Klammern|crochets|corchetes|formato)\b"
    r"|\b(?:like [\"'`(]?|sources?: ?)\[|\]\[\d|\.\.\.|…|格式|注明|角标|形式",
    re.IGNORECASE,
)
# What a form stands behind: the number is an example.
_FORM = re.compile(
    r"\b(?:as|like|using|with|via|in|format|forms?|notation|style|brackets?|etc|e\.g\.|i\.e\.|for"
    r"|examples?|such|(?:citations?|references?)(?=\W{0,3}\Z)|wie|als|mit|z\. ?B\."
    r"|comme|avec|par exemple|como|con|por ejemplo)(?!\w)"
    r"|例如|比如|形式|格式|例|如|像|\bn\b|\[[nix]\]",
    re.IGNORECASE,
)
# A verb whose object is a document.
_CITED = re.compile(
    r"\b(?:cit(?:e|es|ing)|quot(?:e|ing)|zitier\w*|citez|citar?)"
    r"(?:\s+(?:the|only|just|also|always|from|nur|aus)){0,3}(?:\s+[^\W\d_]+)?[\s\[【［(\"'#*]{1,4}\Z",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,6}")
_SENTENCE = re.compile(r"(?:(?<=[\w\])][\w\])\"'][.!?;])\s+|(?<=[。！？；]))")
# A citation at the end of a sentence about something else.
_CITING = re.compile(
    r"\S+\s+\S+\s+\S[^\n]*[\[【［]\d{1,6}[\]】］](?:[\s,]*[\[【［]\d{1,6}[\]】］])*[\s.!?;。\"'”»)`]*\Z"
)
_MAX_LINE = 2000


def naming_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and sentences that do not say how to cite, with their offsets: numbers in
    others, and in the paragraph behind one that ends with a colon, are examples."""
    at, is_example = 0, False
    for line in text.splitlines(keepends=True):
        if _EXAMPLE.search(line) or ("?" not in line and _STYLE.search(line)):
            is_example = line.rstrip().endswith((":", "："))
            if len(line) <= _MAX_LINE:
                yield from _sentences(line, at)
        elif not line.strip():
            is_example = False
        elif not is_example:
            yield at, line
        at += len(line)


def _sentences(line: str, offset: int) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a line that says how to cite which name a document all the same."""
    ends = [*(found.end() for found in _SENTENCE.finditer(line)), len(line)]
    for start, end in zip([0, *ends], ends, strict=False):
        sentence = line[start:end]
        number = _NUMBER.search(sentence)
        if number is None or _FORM.search(sentence[: number.start()]):
            continue
        if _STYLE.search(sentence) or _EXAMPLE.search(sentence):
            is_object = _CITED.search(sentence[: number.start()]) is not None
            names = (is_object or "?" in sentence) and not _STYLE.search(sentence)
        else:
            names = not _CITING.fullmatch(sentence.strip())
        if names:
            yield offset + start, sentence
