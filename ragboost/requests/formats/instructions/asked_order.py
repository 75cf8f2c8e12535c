"""Tell from the wording of a text that documents have to stand where they stand.

It asks for one result per document, or for a document's place; it names one by its place; it says
which place counts more, or by what the documents are sorted; or it calls them the parts of one
text. Words decide: English here, some phrases of other languages beside. What asks for citations or
sources needs no order, since numbers are mapped; nor does a question that is about other documents,
as in "how do I merge documents", or what gives the answer an order.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ragboost.requests.formats.frames.not_documents import word_set
from ragboost.requests.formats.instructions.other_languages import (
    Phrases,
    asks_order,
    languages_of,
    names_place,
)

WORK = "the text asks for work on each element, or says what their order means"
PLACES = "the text names a document by its place"
COUNTED = "the text cites by numbers, and the documents have none: number them"

_MAX_AROUND = 16_384  # characters at each end of a text that are read
_NO_WORDS = str.maketrans(dict.fromkeys(".,;:!?()[]{}<>\"'`*#/\\|=_，。：；！？、（）", " "))
_NO_EMPHASIS = str.maketrans(dict.fromkeys('*`<>"“”„'))
_WRAPPED = re.compile(r"\n(?=[a-zß-öø-ÿа-яё])")  # a line end within a sentence
_SENTENCE = re.compile(r"[^.!?\n;。！？；]{1,300}")
_NOUN = (
    r"(?:documents?|docs?|passages?|excerpts?|chunks?|snippets?|results?|papers?|pdfs?|articles?"
    r"|texts?|paragraphs?|items?|entry|entries|records?|candidates?|files?|reviews?|abstracts?"
    r"|sections?|emails?|pieces?|fragments?|essays?|blocks?)\b"
)
# Those which an answer has, too, are left out.
_DOCUMENT = (
    r"(?:documents?|docs?|passages?|excerpts?|chunks?|snippets?|papers?|pdfs?|articles?|texts?"
    r"|paragraphs?|records?|candidates?|files?|reviews?|emails?|fragments?|sources?)\b"
)
_WORK_WORDS = (
    "translate label classify categorise categorize rank rerank re-rank sort rate score annotate "
    "grade proofread concatenate merge transcribe reorder anonymise anonymize redact"
)
_WORK = f"(?:{'|'.join(_WORK_WORDS.split())})"
_GIVE = (
    rf"(?:{_WORK}|judge|assess|evaluate|summari[sz]e|extract|output|return|give|write|list|embed"
    r"|tag|assign|print|quote|mark|produce|provide|create|generate|fix|rewrite|paraphrase)"
)
_PLACE = r"(?:earlier|later|former|latter|first|last|final|preceding|subsequent)"
_SIDE = r"(?:lower|upper|bottom|top|lowest|topmost|uppermost)"
_BEATS = (
    r"(?:wins?|overrid(?:e|es|ing)|precedence|prevails?|supersedes?|priority|authoritative"
    r"|replaces?|applies|apply|counts?)\b"
)
_WHICH = r"(?:same|given|original|reading|exact|listed|input|temporal|shown|chronological)"
_EACH = r"(?:each|every|per)\s+(?:of\s+(?:the|these)\s+)?(?:\w+\s+)?"
_NUM = r"(?:\d{1,3}|two|three|four|five|six|seven|eight|nine|ten)"
_VALUES = (
    r"(?:floats?|integers?|ints?|numbers?|bool(?:ean)?s?|scores?|labels?|letters?|digits|grades"
    r"|ratings)\b"
)
_REPLY = r"(?:reply|answer|respond|output|return|print|write|give|state|choose|pick)"


class _Rule(NamedTuple):
    """A rule for sentences with a word of each set; what it exempts stands in the sentence, too."""

    words: tuple[frozenset[str], ...]
    asks: re.Pattern[str]
    exempts: re.Pattern[str] | None = None


def _rule(words: str, *asks: str, exempts: str = "") -> _Rule:
    """Make a rule of sets of words, which commas separate, and of patterns."""
    sets = tuple(map(word_set, words.split(",")))
    return _Rule(sets, re.compile("|".join(asks)), re.compile(exempts) if exempts else None)


# At the beginning of a sentence: a form field, and what asks how to do something with others,
# or for an answer with an order of its own.
_FIELD = re.compile(
    r"\W*(?:\w+\s+){0,2}(?:question|query|user|input|request|task|message|instructions?)\W{0,4}[:：]"
)
_HOW = re.compile(
    r"\W*(?:(?:and|so|please|can|you|explain|tell|show|me|us)\W+){0,5}how\s+(?:(?:do|can|could|should|would|must|may)\s+(?:i|we|one|you"
    r"|users?|people)|to)\b(?!.*\b(?:these|those|following|above|below)\b)"
)
_OF_ANSWER = (
    r"(?:\A|,|;|:|\bthen\b|\band\b|\balways\b|\bplease\b)\W*(?:list|explain|describe|tell|answer"
    r"|give|sort|order|rank|present|write|provide|organi[sz]e|arrange|show|return|summari[sz]e"
    r"|reply|respond|use|state|mention|name|recount|narrate|output|outline)\b"
    rf"(?!.*\b(?:{_DOCUMENT}|them\b|they\b|these\b))"
)
_CITED = r"\b(?:cit(?:e|es|ed|ing|ations?)|used?|relied|referenc\w*|mention\w*)\b"
_RULES = (
    _rule(  # work on each document
        f"{_WORK_WORDS},each every all these those the both of following",
        rf"\b{_WORK}\s+(?:each|every|all|these|the following)(?:\s+(?:one|line|string|of)\b"
        rf"|\s+(?:\w+\s+)?{_NOUN}|\s*(?=[,:]|\Z))",
        rf"\b{_WORK}\s+(?:the|those|both|of)\s+(?:\w+\s+){{0,2}}?{_NOUN}",
        exempts=_CITED,
    ),
    _rule(  # a result of each
        "each every per",
        rf"\b{_GIVE}\b.*?\b{_EACH}{_NOUN}",
        rf"\bfor\s+{_EACH}{_NOUN}",
        r"\b(?:grade|score|proofread|transcribe)\s+(?:each|every)\s+\w",
        rf"\b{_REPLY}\b.*?\b(?:one|a)\s+(?:\w+\s+){{0,2}}per\s+(?:\w+\s+)?{_NOUN}",
        rf"\bone\s+(?:\w+\s+)?per\s+{_DOCUMENT}",
        rf"\b{_DOCUMENT}.*\b(?:one|a)\s+\w+\s+(?:for|per)\s+each\b",
        rf"\bcorrect\s+(?:{_EACH}{_NOUN}|the\s.*?\b{_EACH}{_NOUN})",
        exempts=_CITED,
    ),
    _rule(  # the faults of each
        "correct fix improve check edit,grammar spelling style punctuation typos wording",
        r"\b(?:correct|fix|improve|check|edit)\s+(?:the\s+)?(?:\w+\s+){1,3}?(?:of|in)\s+(?:each|every"
        rf"|all|the|these|those)\s+(?:\w+\s+)?{_NOUN}",
    ),
    _rule(  # as many results
        "same list array sequence tuple exactly many,length size of as with exactly",
        rf"\bsame\s+(?:length|size|number)\b.*?\bas\s+(?:the\s+)?(?:number\s+of\s+)?(?:the\s+)?"
        rf"(?:input|list|{_NOUN})",
        rf"\b(?:list|array|sequence|tuple)\s+(?:of|with)\s+(?:exactly\s+)?{_NUM}\s+{_VALUES}",
        rf"\b{_REPLY}\b.*?\bexactly\s+{_NUM}\s+{_VALUES}",
        rf"\bas\s+many\s+(?:\w+\s+){{1,2}}as\s+(?:there\s+are\s+)?{_NOUN}",
    ),
    _rule(
        "one another,by at after",
        rf"\b(?:go|walk|step|work|summari[sz]e|describe|treat|discuss|review|explain|process|analy[sz]e)"
        rf"\b.*?\b(?:{_DOCUMENT}|them\b).*?\bone\s+(?:by\s+one|at\s+a\s+time|after\s+(?:the\s+other"
        r"|another))\b",
    ),
    _rule(
        "merge combine join stitch assemble,into",
        r"\b(?:merge|combine|join|stitch|assemble)\s+(?:the|these|those|all)\s+(?:\w+\s+)?"
        rf"{_NOUN}\s+(?:\w+\s+)?into\b",
    ),
    _rule(
        "all the,render fix correct rewrite paraphrase convert translate return join",
        rf"\b(?:render|fix|correct|rewrite|paraphrase|convert|return|join)\b.*?\ball\s+(?:of\s+)?"
        rf"(?:the\s+)?{_NOUN}",
        rf"\bjoin\s+the\s+(?:\w+\s+)?{_NOUN}",
    ),
    _rule(  # the place of one
        "index indexes indices position positions number numbers ordinal,"
        "reply answer respond output return print write give state of",
        r"\b(?:ind(?:ex(?:es)?|ices)|positions?|numbers?|ordinal)\s+(?:only\s+)?of\s+the\s+"
        rf"(?:\w+[\s-]+){{0,3}}?{_NOUN}",
        r"\b(?:reply|answer|respond|output|return|print|write|give|state)\b.*?\b(?:ind(?:ices|exes)"
        r"|(?:its|their|the)\s+(?:index|positions?|numbers?(?:\s+only)?))\s*(?=[,:]|\Z)",
        r"\b(?:indices|indexes|positions)\s+of\b",
        exempts=r"\bcit(?:e|es|ed|ing|ations?)\b|bracket|\[|footnote|\breferenc",
    ),
    _rule(
        "permutation number count 2 b,the 1 a",
        r"\bpermutation\b|\b(?:number|count)\s+the\s+(?:documents|passages|texts|excerpts)\b",
        rf"\b{_REPLY}\b(?:\s+(?:with|only|just|either|by))*\W+1\W{{1,3}}2\b(?:\W{{1,3}}\d)*(?:\W*\bor\W*\d)?"
        r"(?:\W*\bonly)?\W*\Z",
        rf"\b{_REPLY}\b(?:\s+(?:with|only|just|either|by))*\W+a\W{{1,3}}b\b.*\b(?:of|for)\s+the\s+"
        rf"{_DOCUMENT}",
        exempts=r"\bcit(?:e|es|ed|ing|ations?)\b|\[",
    ),
    _rule(  # by a letter
        "document documents passage passages text texts candidate candidates excerpt,b c d",
        r"\b(document|passage|text|candidate|excerpt)\s+[a-d]\b.{0,80}?\b\1\s+[b-d]\b",
        r"\b(document|passage|text|candidate|excerpt)\s+[b-d]\b.{0,80}?\b\2\s+[a-d]\b",
        r"\b(?:document|passage|text|candidate|excerpt)s\s+a\s*(?:,|and|or|&)\s*b\b",
    ),
    _rule(
        "which,document documents passage passages doc docs chunk chunks snippet snippets excerpt",
        r"\bwhich\s+(?:one\s+of\s+the\s+)?(?:document|passage|doc|chunk|snippet|excerpt)s?\b",
        r"\bwhich\s+(?:of\s+the\s+|is\s+the\s+)?(?:\w+\s+)?"
        rf"{_DOCUMENT}.*?\bin\s+the\s+middle\b",
        exempts=r"\bwhich\s+\w+\s+(?:do|does|must|should|can|may|will|have|need|are|is)\b(?!.*\banswer)"
        r".*\b(?:need(?:ed)?|requir\w+|necessary|submit(?:ted)?|sign(?:ed)?|hand(?:ed)?|provided?|bring"
        r"|attach(?:ed)?|send|sent|upload(?:ed)?|present(?:ed)?)\b",
    ),
    _rule(  # which place counts more
        "earlier later former latter first last final preceding subsequent lower upper bottom top "
        "lowest topmost uppermost,"
        "win wins override overrides overriding precedence prevail prevails supersede supersedes "
        "priority authoritative replace replaces prefer trust believe favor favour ignore skip "
        "contradict contradicts contradiction contradictions disagree disagrees disagreement "
        "conflict conflicts conflicting contradictory come comes",
        rf"\b{_PLACE}\s+(?:\w+\s+)?(?:ones?\b|of\s+(?:the|them|two)\b|{_NOUN}).*?\b{_BEATS}",
        rf"\b{_PLACE}\s+(?:(?:listed|given|named|has|have|takes?|is|always|should|will|must)\s+)"
        rf"{{0,3}}{_BEATS}",
        rf"\b(?:prefer|trust|believe|favou?r|ignore|skip)\s+(?:the\s+)?{_PLACE}"
        rf"(?:\s+(?:ones?\b|{_NOUN})|\s*(?=,|\Z))",
        rf"\b(?:contradict|disagree|conflict).*?\b{_PLACE}(?:\s+(?:\w+\s+)?(?:ones?\b|{_NOUN})"
        r"|\s+(?:listed|given|named|is|counts)\b|\s*(?=,|\Z))",
        rf"\b(?:contradict|disagree|conflict).*?\b{_SIDE}\s+(?:ones?\b|{_NOUN})",
        exempts=r"\b(?:messages?|turns?|instructions?|questions?|paragraph of your)\b",
    ),
    _rule(  # where one stands, and which one stands beside another
        "first last further bottom before previous one two three above below after",
        r"\b(?:stands?|comes?|appears?|is|are)\s+(?:listed\s+)?(?:last|further\s+(?:down|up)|at\s+the"
        r"\s+bottom)\b|\bcomes?\s+first\b|\bfurther\s+(?:down|up)\s+(?:is|wins|counts)\b",
        r"\b(?:the\s+one\s+before\s+it|the\s+previous\s+one|the\s+first\s+and\s+(?:the\s+)?(?:second|last)"
        rf"(?:\s+ones?\b|\s+{_NOUN}|\s*(?=,|\Z))"
        rf"|the\s+first\s+(?:{_DOCUMENT}\s+)?is\b.*\bthe\s+second\b|the\s+second\s+is\b.*\bthe\s+first"
        r"\s*\Z)",
        rf"\b{_DOCUMENT}\s+(?:further\s+(?:up|down)|(?:above|below|before|after)\s+(?:the|it|this|that"
        r"|one|each)\b).*?\b(?:is|are)\s+(?:the\s+)?\w*(?:er|est|recent|draft)\b(?!\s+than)",
        r"\b(?:document|passage|text)\s+(?:one|two|three|four|five|six)\b",
        exempts=r"\b(?:messages?|questions?|answers?|names?)\b",
    ),
    _rule(  # that one belongs to the one before it
        "each every,above before previous preceding prior after next following",
        rf"\b(?:each|every)\s+(?:\w+\s+)?{_NOUN}\s+(?:repl(?:y|ies)|responds?|answers|supersedes|replaces"
        r"|amends|follows|updates|continues|is\s+an?\s+\w+\s+(?:to|of)|shows?)\b.*\b(?:above|before"
        r"|previous|preceding|prior|next|following)\b",
        rf"\b{_DOCUMENT}.*\b(?:states?|versions?)\b.*\bafter\s+(?:each|every)\b",
    ),
    _rule(
        "version versions draft drafts document documents passage text,next these",
        rf"\bfrom\s+one\s+(?:version|draft|{_DOCUMENT})\s+to\s+the\s+next\b",
        r"\b(?:over|across|through|between)\s+these\s+(?:\w+\s+)?(?:versions|drafts|revisions)\b",
    ),
    _rule(  # by what they are sorted, and that this is to be kept
        "order sequence appear,as of same document in keep keeping preserve preserving maintain "
        "maintaining retain without",
        r"\b(?:in|keep(?:ing)?|preserv(?:e|ing)|maintain(?:ing)?|retain|without changing)"
        rf"\s+(?:the|their|this|that)\s+(?:{_WHICH}\s+)?(?:order|sequence)\b(?!\s+(?:to|of)\b)",
        r"\border\s+(?:they|in\s+which\s+they|as\s+(?:the\s+)?input|of\s+appearance)\b|\b(?:document|input|list)"
        r"\s+order\b|\bas\s+they\s+appear\b",
        rf"\b(?:{_NOUN}|them)\s+(?:above\s+|below\s+)?in\s+order\b(?!\s+(?:to|for|that)\b)",
        r"\bin(?:to)?\s+(?:chronological|temporal|reading)\s+order\b",
        rf"\border\s+of\s+(?:the|these)\s+(?:\w+\s+)?{_DOCUMENT}",
        exempts=r"\b(?:steps?|events?|imports?|questions?|asked|findings|facts|alphabetical)\b|"
        + _OF_ANSWER,
    ),
    _rule(
        "sorted ordered listed arranged order,by from of",
        r"\b(?:ascending|descending|increasing|decreasing)\s+order\s+of\s+(?:trust|authority|priority"
        r"|reliability|date|time|age)\b",
        r"\b(?:sorted|ordered|listed|arranged)\s+(?:by|from)\s+(?:\w+\s+)?(?:date|time|age"
        r"|priority|year|version|oldest|newest|earliest|latest)\b",
        exempts=_OF_ANSWER,
    ),
    _rule(
        "newest oldest latest earliest recent strongest weakest,first last to",
        r"\b(?:newest|oldest|latest|earliest|most\s+recent|strongest|weakest)\s+(?:first|last|to)\b",
        exempts=_OF_ANSWER,
    ),
    _rule(  # that they are the parts of one text
        "consecutive successive sequential part parts pages page pieces chunks split divided cut "
        "broken continue continues,parts part pages page pieces chunks documents document passages "
        "texts text sections excerpts the",
        rf"\b(?:consecutive|successive|sequential)\s+(?:\w+\s+)?(?:parts?|pages?|pieces?|{_NOUN})",
        r"\b(?:parts?|pages?|pieces|chunks)\s+of\s+(?:one|a\s+single|the\s+same)\b",
        rf"\b(?:split|divided|cut|broken)\s+(?:up\s+)?into\s+(?:\w+\s+)?(?:parts|pieces|{_NOUN})",
        r"\bcontinues?\s+(?:from\s+)?the\s+(?:one|previous|last|story|text|document)\b",
    ),
    _rule(
        "form make constitute,one single",
        rf"\b{_NOUN}\s+(?:together\s+)?(?:form|make\s+up|constitute)\s+(?:one|a\s+single)\b",
    ),
    _rule(
        "chapter scene far happens bottom typos proofread",
        r"\bnext\s+(?:chapter|scene)\b|\b(?:story|text)\s+so\s+far\b|\bwhat\s+happens\s+next\b"
        r"|\btop\s+to\s+bottom\b|\bfix\s+(?:the|all)\s+typos\b|\bproofread\b",
    ),
)
_ORDINALS = word_set(
    "opening first second third fourth fifth sixth seventh eighth ninth tenth last middle "
    "penultimate second-to-last next-to-last"
)
_THINGS = (
    r"(?:document|doc|passage|source|excerpt|chunk|snippet|result|paper|pdf|one)s?\b"
    r"(?!\s+(?:of|i|we|you)\b)"
)
_LEFT = (
    "ignore",
    "skip",
    "read",
    "use",
    "in",
    "of",
    "to",
    "see",
    "quote",
    "only",
    "summari[sz]e",
    "from",
)
_BETWEEN = r"\s+(?:(?:one|two|three|\d+)\s+)?(?:of the\s+)?(?:search\s+)?"
_NAMED = re.compile(
    rf"\b(?:{'|'.join(sorted(_ORDINALS))}|\d{{1,3}}(?:st|nd|rd|th)){_BETWEEN}{_THINGS}"
    rf"|\b(?:{'|'.join(_LEFT)})\s+(?:the\s+)?final{_BETWEEN}{_THINGS}"
)
_NTH = re.compile(r"\d(?:st|nd|rd|th)\b")


def asked_order(text: str) -> str:
    """Return why the documents near a text have to stand where they stand; empty if they may move.

    Args:
        text: what stands around them, or a message before them.
    """
    if len(text) > 2 * _MAX_AROUND:
        text = f"{text[:_MAX_AROUND]}\n{text[-_MAX_AROUND:]}"
    text = _WRAPPED.sub(" ", text).translate(_NO_EMPHASIS).lower()
    words = frozenset(text.translate(_NO_WORDS).split())
    languages = languages_of(text)
    if _names_place(text, words, languages):
        return PLACES
    if asks_order(text, languages):
        return WORK
    rules = [rule for rule in _RULES if not any(map(words.isdisjoint, rule.words))]
    return WORK if rules and any(_asks(each, rules) for each in _SENTENCE.findall(text)) else ""


def _names_place(text: str, words: frozenset[str], languages: Sequence[Phrases]) -> bool:
    """Return True for a text that names a document by its place, as in "the second document"."""
    if names_place(text, languages):
        return True
    is_near = not words.isdisjoint(_ORDINALS) or "final" in words or _NTH.search(text) is not None
    return is_near and _NAMED.search(text) is not None


def _asks(sentence: str, rules: list[_Rule]) -> bool:
    """Return True for a sentence that asks for something which the order of the list decides."""
    field = _FIELD.match(sentence)
    sentence = sentence[field.end() :] if field is not None else sentence
    if _HOW.match(sentence) is not None:
        return False
    words = frozenset(sentence.translate(_NO_WORDS).split())
    return any(
        not any(map(words.isdisjoint, rule.words))
        and rule.asks.search(sentence) is not None
        and (rule.exempts is None or rule.exempts.search(sentence) is None)
        for rule in rules
    )
