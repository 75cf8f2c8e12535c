"""Tell from the wording of a text that documents have to stand where they stand.

It asks for one result per document, or for a document's place; it names one by its place; it says
which place counts more, or by what the documents are sorted; or it calls them the parts of one
text. Words decide: English, and the most frequent phrases of five other languages. What asks for
citations or sources needs no order, since numbers are mapped.
"""

import re
from typing import NamedTuple

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
    r"|sections?|emails?|pieces?)\b"
)
_WORK_WORDS = (
    "translate label classify categorise categorize rank rerank re-rank sort rate score annotate "
    "grade proofread concatenate merge transcribe"
)
_WORK = f"(?:{'|'.join(_WORK_WORDS.split())})"
_GIVE = (
    rf"(?:{_WORK}|judge|assess|evaluate|summari[sz]e|extract|output|return|give|write|list|embed"
    r"|tag|assign|print|quote|mark|produce|provide|create|generate)"
)
_PLACE = r"(?:earlier|later|former|latter|first|last|final|preceding|subsequent)"
_WHICH = r"(?:same|given|original|reading|exact|listed|input|temporal|shown|chronological)"
_EACH = r"(?:each|every|per)\s+(?:of\s+(?:the|these)\s+)?(?:\w+\s+)?"


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


class _Rule(NamedTuple):
    """A rule for sentences with a word of each set; what it exempts stands in the sentence, too."""

    words: tuple[frozenset[str], ...]
    asks: re.Pattern[str]
    exempts: re.Pattern[str] | None = None


def _rule(words: str, *asks: str, exempts: str = "") -> _Rule:
    """Make a rule of sets of words, which commas separate, and of patterns."""
    sets = tuple(map(_set, words.split(",")))
    return _Rule(sets, re.compile("|".join(asks)), re.compile(exempts) if exempts else None)


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
        exempts=_CITED,
    ),
    _rule(
        "all the,render fix correct rewrite paraphrase convert translate return join",
        rf"\b(?:render|fix|correct|rewrite|paraphrase|convert|return|join)\b.*?\ball\s+(?:of\s+)?"
        rf"(?:the\s+)?{_NOUN}",
        rf"\bjoin\s+the\s+(?:\w+\s+)?{_NOUN}",
    ),
    _rule(
        "jede jedes jeden alle je chaque cada ogni",
        r"\b(?:jede[sn]?|je|chaque|cada|ogni)\s+(?:\w+\s+)?(?:dokument|texte?\b|document|passage)",
        r"\b(?:übersetze|korrigiere|bewerte|ordne)\s+alle\b",
        exempts=r"\b(?:zitier|beleg|citez?|cita)",
    ),
    _rule(  # the place of one
        "index indexes indices position positions number numbers ordinal,"
        "reply answer respond output return print write give state of",
        r"\b(?:ind(?:ex(?:es)?|ices)|positions?|numbers?|ordinal)\s+(?:only\s+)?of\s+the\s+"
        rf"(?:\w+[\s-]+){{0,3}}?{_NOUN}",
        r"\b(?:reply|answer|respond|output|return|print|write|give|state)\b.*?\b(?:ind(?:ices|exes)"
        r"|(?:its|their|the)\s+(?:index|position|numbers?(?:\s+only)?))\s*(?=[,:]|\Z)",
        exempts=r"\bcit(?:e|es|ed|ing|ations?)\b|bracket|\[|footnote|\breferenc",
    ),
    _rule(
        "which,document documents passage passages doc docs chunk chunks snippet snippets excerpt",
        r"\bwhich\s+(?:one\s+of\s+the\s+)?(?:document|passage|doc|chunk|snippet|excerpt)s?\b",
    ),
    _rule(  # which place counts more
        "earlier later former latter first last final preceding subsequent,"
        "win wins override overrides overriding precedence prevail prevails supersede supersedes "
        "priority authoritative replace replaces prefer trust believe favor favour ignore skip "
        "contradict contradicts disagree disagrees conflict conflicting contradictory come comes",
        rf"\b{_PLACE}\b.*?\b(?:wins?|overrid(?:e|es|ing)|precedence|prevails?|supersedes?|priority"
        r"|authoritative|replaces?)\b",
        rf"\b(?:prefer|trust|believe|favou?r|ignore|skip)\s+(?:the\s+)?{_PLACE}"
        rf"(?:\s+(?:ones?\b|{_NOUN})|\s*(?=,|\Z))",
        rf"\b(?:contradict|disagree|conflict).*?\b{_PLACE}\b(?!\s+(?:\w+\s+)?(?:name|dates?|version))",
        exempts=r"\b(?:messages?|turns?|instructions?|questions?|paragraph of your)\b",
    ),
    _rule(  # where one stands, and which one stands beside another
        "first last further bottom before previous one two three",
        r"\b(?:stands?|comes?|appears?|is|are)\s+(?:listed\s+)?(?:last|further\s+(?:down|up)|at\s+the"
        r"\s+bottom)\b|\bcomes?\s+first\b|\bfurther\s+(?:down|up)\s+(?:is|wins|counts)\b",
        r"\b(?:the\s+one\s+before\s+it|the\s+previous\s+one|the\s+first\s+and\s+(?:the\s+)?(?:second|last)"
        r"|the\s+first\s+is\b.*\bthe\s+second\b)",
        r"\b(?:document|passage|text)\s+(?:one|two|three|four|five|six)\b",
        exempts=r"\b(?:messages?|questions?|answers?|names?)\b",
    ),
    _rule(
        "gilt foi unterste unterstes oberste oberstes erste",
        r"\b(?:letzte|erste|spätere|frühere)\s+gilt|\b(?:dernier|premier)\s+fait\s+foi"
        r"|\b(?:unterste|oberste|erste|letzte)[srn]?\s+(?:dokument|text|abschnitt)",
    ),
    _rule(  # by what they are sorted, and that this is to be kept
        "order sequence appear,as same document in keep keeping preserve preserving maintain "
        "maintaining retain without",
        r"\b(?:in|keep(?:ing)?|preserv(?:e|ing)|maintain(?:ing)?|retain|without changing)"
        rf"\s+(?:the|their|this|that)\s+(?:{_WHICH}\s+)?(?:order|sequence)\b(?!\s+(?:to|of)\b)",
        r"\border\s+(?:they|in\s+which\s+they|as\s+(?:the\s+)?input|of\s+appearance)\b|\b(?:document|input|list)"
        r"\s+order\b|\bas\s+they\s+appear\b",
        rf"\b(?:{_NOUN}|them)\s+(?:above\s+|below\s+)?in\s+order\b(?!\s+(?:to|for|that)\b)",
        r"\bin\s+(?:chronological|temporal|reading)\s+order\b",
        exempts=r"\b(?:steps?|events?|imports?|questions?|asked|findings|facts|alphabetical)\b",
    ),
    _rule(
        "sorted ordered listed arranged,by from",
        r"\b(?:sorted|ordered|listed|arranged)\s+(?:by|from)\s+(?:\w+\s+)?(?:date|time|age"
        r"|priority|year|version|oldest|newest|earliest|latest)\b",
    ),
    _rule(
        "newest oldest latest earliest recent strongest weakest,first last to",
        r"\b(?:newest|oldest|latest|earliest|most\s+recent|strongest|weakest)\s+(?:first|last|to)\b",
    ),
    _rule(
        "reihenfolge geordnet chronologisch ordre date orden ordenados ordenadas",
        r"\b(?:dieser|gleichen|derselben|angegebenen)\s+reihenfolge|(?:zeitlich|nach datum)\s+"
        r"geordnet|chronologisch|\b(?:même|cet)\s+ordre|\bclassés\s+par\s+date"
        r"|\b(?:mismo|ese|este)\s+orden\b|\bordenad[oa]s\s+por"
        r"|\bin\s+der\s+reihenfolge\s+ihr(?!er relevanz)",
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
        "chapter scene far happens bottom typos proofread",
        r"\bnext\s+(?:chapter|scene)\b|\b(?:story|text)\s+so\s+far\b|\bwhat\s+happens\s+next\b"
        r"|\btop\s+to\s+bottom\b|\bfix\s+(?:the|all)\s+typos\b|\bproofread\b",
    ),
)
_IN_OTHERS = re.compile(
    r"(?:翻译|分类|打分|评分|总结|概括|标注|判断|输出|排序)[^。\n]{0,20}每[一个個篇条份]"
    r"|每[一个個篇条份][^。\n]{0,20}(?:翻译|分类|打分|评分|总结|概括|标注|判断|输出)"
    r"|(?:文档|资料|段落|片段)[^。\n]{0,6}排序|(?:最后|第一|后者|前者)[^。\n]{0,8}为准"
    r"|各文[書档檔]|按[^。\n]{0,6}顺序(?!列出|说明|回答|总结|描述|整理)|按时间先后|[后後前]面的(?:文档|资料|段落)优先"
    r"|du plus (?:ancien|récent) au plus|хронологическ"
)
_OTHERS = ("各", "每", "序", "为准", "先", "du plus", "хронолог")
_ORDINALS = _set(
    "opening first second third fourth fifth sixth seventh eighth ninth tenth last premier "
    "première premiers premières deuxième troisième dernier dernière derniers dernières primer "
    "primero primera segundo segunda tercer tercero tercera último última últimos últimas primo "
    "prima secondo seconda terzo terza ultimo ultima erste ersten erstes erster zweite zweiten "
    "zweites zweiter dritte dritten drittes dritter letzte letzten letztes letzter"
)
_THINGS = (
    r"(?:dokument|document[oe]?|doc|passage|source|excerpt|chunk|snippet|result|paper|pdf|one"
    r"|artikel|quelle|fuente)s?\b(?!\s+of\b)"
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
_NAMED_IN_CHINESE = re.compile(
    r"(?:第|最后)[一二三四五六七八九十\d]{0,3}[个個份]?(?:文[档檔件]|[资資]料|片段|篇|来源|來源)"
)


def asked_order(text: str) -> str:
    """Return why the documents near a text have to stand where they stand; empty if they may move.

    Args:
        text: what stands around them, or a message before them.
    """
    if len(text) > 2 * _MAX_AROUND:
        text = f"{text[:_MAX_AROUND]}\n{text[-_MAX_AROUND:]}"
    text = _WRAPPED.sub(" ", text).translate(_NO_EMPHASIS).lower()
    words = frozenset(text.translate(_NO_WORDS).split())
    if _names_place(text, words):
        return PLACES
    if any(map(text.__contains__, _OTHERS)) and _IN_OTHERS.search(text):
        return WORK
    rules = [rule for rule in _RULES if not any(map(words.isdisjoint, rule.words))]
    return WORK if rules and any(_asks(each, rules) for each in _SENTENCE.findall(text)) else ""


def _names_place(text: str, words: frozenset[str]) -> bool:
    """Return True for a text that names a document by its place, as in "the second document"."""
    if ("第" in text or "最后" in text) and _NAMED_IN_CHINESE.search(text):
        return True
    is_near = not words.isdisjoint(_ORDINALS) or "final" in words or _NTH.search(text) is not None
    return is_near and _NAMED.search(text) is not None


def _asks(sentence: str, rules: list[_Rule]) -> bool:
    words = frozenset(sentence.translate(_NO_WORDS).split())
    return any(
        not any(map(words.isdisjoint, rule.words))
        and rule.asks.search(sentence) is not None
        and (rule.exempts is None or rule.exempts.search(sentence) is None)
        for rule in rules
    )
