"""Lists that are not documents: examples, transcripts, steps, options, records, code.

Their order is their meaning, or they belong to an instruction. Names decide where there are any;
else the length: what is shorter than some sentences is an option or a step.
"""

import re
from collections.abc import Collection, Iterable, Sequence

MIN_CHARS = 60
"""The shortest document of a list whose documents have no mark at their ends."""

_MEAN_CHARS = 160  # of elements with a name that says nothing: about 40 tokens
_FEW_CHARS = 20  # of elements with a name that says document
_DOCUMENTS = (
    "document doc passage chunk source result item_content context snippet file file_content "
    "article page excerpt reference resource webpage website search_result retrieved_chunk "
    "note_file memory knowledge paragraph text content entry record_text "
)
# Tags and labels of other lists, without plural; of HTML; in other languages.
_ORDERED = (
    "a answer action ai agent algorithm appendix argument arg assistant attempt bot case "
    "category chapter choice class clause column command comment commit condition constraint "
    "conversation criterion day definition demo demonstration dialog dialogue diff edit episode "
    "event exercise example exemplar experiment fact field fig figure few_shot function goal "
    "guideline heading hour hunk human idea input instruction invoke issue item iteration key "
    "lemma lesson level line log message method milestone minute model module month move name "
    "note objective observation option order output param parameter part patch persona phase "
    "plan player point policy premise principle priority problem procedure prompt property "
    "proposition q query question reason reply request requirement response role round row rule "
    "sample scenario scene section sentence shot shots slide speaker stage statement step "
    "subtask system table task test theorem thought thinking tip tool tool_call topic turn "
    "update user utterance value variable verse version vol volume week year b body br code dd "
    "details div dl dt em figcaption footer form h head header html i img label li link main "
    "meta nav ol p pre script span strong style sub sup svg tbody td th thead title tr u ul "
    "act alternative candidate canto cell clip completion draft epoch frame night page proof "
    "quarter revision segment shift solution sprint stanza story todo track try variant "
    "claim email mail post reply skill testcase unit caption cue exchange msg strophe subtitle "
    "ayah blockquote change checkpoint diary diary_entry journal letter lg measure panel para "
    "age difficulty floor grade position quantity rating room score season seat severity size star "
    "tier vote weight psalm rank snapshot sms state stderr stdout surah tweet voicemail "
    "seite página pagina absatz artikel jahr monat nachricht platz rang strophe szene tag "
    "vers woche zeile acte jour ligne mois scène semaine vers verso "
    "beispiel frage antwort schritt aufgabe regel kapitel abschnitt teil exemple réponse étape "
    "règle chapitre partie ejemplo pregunta respuesta paso opción regla capítulo parte domanda "
    "risposta esempio passo opzione capitolo exemplo pergunta resposta etapa opção regra пример "
    "вопрос ответ шаг глава 例 例子 示例 样例 问题 問題 问 答 答案 步骤 "
    "步驟 选项 選項 规则 規則 章 节 第 任务 任務 用户 助手 質問 回答 "
    "手順 例題 ステップ 예시 질문 답변 단계 "
)
# Words of elements that hold a list of documents, beside those that say document.
_HOLDERS = (
    "information info data background material evidence corpus library kb retrieval retrieved rag "
    "ref citation kontext wissen contexte contexto contesto "
)
_HOLDER_NAMES = frozenset(_HOLDERS.split())
_HOLDERS_IN_CHINESE = (
    "文档",
    "文檔",
    "知识",
    "資料",
    "资料",
    "参考",
    "信息",
    "上下文",
    "检索",
    "文献",
)
_SINGLE = (
    "document doc passage chunk file file_content article webpage snippet source search_result"
)
_SINGLE_NAMES = frozenset(_SINGLE.split())
DOCUMENT_NAMES = frozenset(_DOCUMENTS.split())
ORDERED_NAMES = frozenset(_ORDERED.split())
_WORDS = re.compile(r"[^\W\d_]+")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Things whose parts have an order: entries of a log, results of steps.
_WHOLES = "chat conversation dialogue event log message step task test tool turn"
_PARTS = frozenset(_WHOLES.split())
_INNER_TAG = re.compile(r"<!--.*?-->|<(?!!)[^<>]{1,200}>", re.DOTALL)
# Fields of an example, a task or a message.
_RECORDS = (
    "label labels output completion target expected translation sentiment input instruction status "
    "priority done completed role speaker sender from step turn level"
)
_RECORD_FIELDS = frozenset(_RECORDS.split())
# One line with a year, and with what a bibliography says of each work.
_WORK_CITED = re.compile(
    r"(?=.*\b(?:19|20)\d\d[a-z]?\b).*(?:\b(?:doi|arxiv|isbn|journal|proceedings|press|accessed)\b"
    r"|https?://|\bet al\b|\b(?:pp?|vol|no|proc)\.|\b\d+ ?\(\d+\))",
    re.IGNORECASE,
)
_MAX_CITED = 400
_ARROW = re.compile(r"[^\n]\s+(?:=>|->|→)\s")  # of an example, in its first lines
_MAX_EXAMPLE = 200
# Work on each element of a list, whose result has its order.
_ORDER_TO_WORK = (
    r"\b(?:translate|label|classify|categori[sz]e|rank|sort|rate|score|annotate|grade|proofread)"
    r"\s+(?:each|every|all|these|the following)\b"
)
_WORK = re.compile(
    _ORDER_TO_WORK
    + r"|\beach (?:one|line|text|item|string|entry)\b|\bone by one\b|\bline by line\b"
    r"|\brespectively\b"
    r"|\bin (?:this|that|the same|the given|the following) order\b",
    re.IGNORECASE,
)
_SPEAKERS = (
    *("q", "a", "question", "answer", "input", "output", "user", "assistant", "human", "ai", "bot"),
    *("system", "example", "instruction", "prompt", "response", "问题", "问", "答", "用户", "助手"),
)
_COUNTS = frozenset(("n", "no", "nr", "number"))  # as in "Step number 1"
_COUNTERS = _COUNTS | {"id", "index", "idx", "ref", "citation", ""}  # of a field with a place
_MAX_OUTSIDE = 16_384
_MAX_LOOKED_AT = 4000  # characters of a document


def is_document_name(name: str) -> bool:
    """Return True for a tag that holds one document, so that a list inside it is its content."""
    return name in _SINGLE_NAMES


def is_ordered_name(name: str) -> bool:
    """Return True for the name or label of a list whose order is its meaning."""
    words = split_name(name)
    words = [word for word in words if word not in _COUNTS] or words
    if not words or words[0] == "example" or not _PARTS.isdisjoint(words[:-1]):
        return bool(words)
    return singular(words[-1]) in ORDERED_NAMES


def is_ordered_label(before: str) -> bool:
    """Return True for what stands before the numbers of a list whose order is its meaning: such a
    name, articles of a law, or a field as in `Rating: 1` that counts no places."""
    *_, last = ("", *split_name(before))
    if is_ordered_name(before) or last == "article":
        return True
    is_field = any(colon in before for colon in ":：") and last.isascii()
    return is_field and not {last, singular(last)} & (DOCUMENT_NAMES | _COUNTERS)


def holds_documents(name: str) -> bool:
    """Return True for the name of an element that holds a list of documents and nothing else."""
    words = {singular(word) for word in split_name(name)}
    if words.isdisjoint(DOCUMENT_NAMES) and words.isdisjoint(_HOLDER_NAMES):
        return any(word in name for word in _HOLDERS_IN_CHINESE)
    return True


def is_record(fields: Collection[str]) -> bool:
    """Return True for the fields of an example, a task or a message."""
    return not _RECORD_FIELDS.isdisjoint(map(str.lower, fields))


def is_bibliography(texts: Iterable[str]) -> bool:
    """Return True for works that a text cites, each on a line."""
    return all(
        len(text) <= _MAX_CITED and "\n" not in text and _WORK_CITED.match(text) for text in texts
    )


def is_work(text: str, start: int, end: int) -> bool:
    """Return True if what stands beside a list asks for something for each of its elements."""
    before, behind = text[max(0, start - _MAX_OUTSIDE) : start], text[end : end + _MAX_OUTSIDE]
    return _WORK.search(before) is not None or _WORK.search(behind) is not None


def is_dialogue(text: str) -> bool:
    """Return True for a part of a conversation or an example: `Q: ...`, `User: ...`, `{...}`."""
    if text.startswith("{") or _ARROW.search(text, 0, _MAX_EXAMPLE):
        return True
    label, colon, _ = text[:40].partition(":")
    words = _WORDS.findall(label.lower())
    return bool(colon) and bool(words) and words[-1] in _SPEAKERS


def are_documents(name: str, texts: Sequence[str]) -> bool:
    """Return True if elements of this name can be documents.

    Args:
        texts: their contents.
    """
    words = split_name(name)
    is_named = bool(words) and not DOCUMENT_NAMES.isdisjoint((name.lower(), singular(words[-1])))
    is_named = is_named and _PARTS.isdisjoint(words[:-1])
    if not is_named and is_ordered_name(name):
        return False
    mean = sum(map(len, texts)) / len(texts)
    if mean < (_FEW_CHARS if is_named else _MEAN_CHARS):
        return False
    return not (all(map(_is_record, texts)) or is_bibliography(map(str.strip, texts)))


def _is_record(text: str) -> bool:
    """Return True for elements inside one another without a sentence: a record of fields."""
    text = text[:_MAX_LOOKED_AT].strip()
    if not (text.startswith("<") and text.endswith(">")) or len(text) >= _MAX_LOOKED_AT:
        return False
    return max(map(len, _INNER_TAG.split(text))) < MIN_CHARS


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def split_name(name: str) -> list[str]:
    """Return the words of a name in lower case, as of `startTime` and `start_time`."""
    return _WORDS.findall(_CAPITAL.sub("_", name).lower())


def singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word
