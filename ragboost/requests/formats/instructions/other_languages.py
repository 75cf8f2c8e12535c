"""Tell from the wording of a text that documents have to stand where they stand, in the most
frequent phrases of languages other than English.

Each language has the same kinds: a document by its place, work on each one, which place counts.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_GAP = r"[^.!?。！？\n]{0,60}?"


class _Language(NamedTuple):
    """Patterns of words, which are put together to phrases."""

    stems: str  # one of them is in each phrase; commas separate
    place: str  # as an adjective, before a document
    document: str
    each: str  # before a document
    conflict: str  # what is followed by the place that counts
    one_by_one: str


_LANGUAGES = (
    _Language(
        stems="jede,letzt,erste,zweit,dritte,vierte,fünfte,mittlere,oberst,unterst,spätere,"
        "frühere,untere,obere,weiter ,nacheinander,reihe nach",
        place=r"(?:erste|zweite|dritte|vierte|fünfte|letzte|vorletzte|mittlere|oberste|unterste)"
        r"[nmrs]?",
        document=r"(?:dokument|text|abschnitt|passage|quelle|auszug|artikel|absatz)\w{0,3}",
        each=r"(?:jede[nmrs]?|je)",
        conflict=r"(?:widerspr[üie]ch|konflikt)\w*",
        one_by_one=r"nacheinander|eine?s? nach dem anderen|der reihe nach",
    ),
    _Language(
        stems="premier,premiè,dernier,derniè,deuxiè,troisiè,quatriè,chaque,chacun,seconde,"
        "plus haut,plus bas,précédent,suivant, par un, l'un",
        place=r"(?:premi[eè]re?s?|deuxième|second[e]?|troisième|quatrième|(?:avant-)?derni[eè]re?s?)",
        document=r"(?:documents?|textes?|passages?|extraits?|sources?|articles?)",
        each=r"(?:chaque|chacun des)",
        conflict=r"(?:contradiction|conflit|désaccord|divergence)s?",
        one_by_one=r"une? par une?|l'une? après l'autre",
    ),
    _Language(
        stems="primer,segund,tercer,últim,cada,anterior,posterior,más abajo,más arriba,uno ",
        place=r"(?:primer[oa]?|segund[oa]|tercer[oa]?|últim[oa]s?)",
        document=r"(?:documento|texto|pasaje|fragmento|fuente|artículo)s?",
        each=r"cada(?: uno de los)?",
        conflict=r"(?:conflicto|contradicci[oó]n|contradicciones|discrepancia)s?",
        one_by_one=r"un[oa] (?:por|a) un[oa]",
    ),
    _Language(
        stems="primo,prima,secondo,seconda,terzo,terza,ultim,ogni,ciascun,precedente,"
        "successiv,uno ",
        place=r"(?:prim[oa]|second[oa]|terz[oa]|ultim[oa])",
        document=r"(?:document[oi]|test[oi]|passaggi?o?|bran[oi]|font[ei]|articol[oi])",
        each=r"(?:ogni|ciascun[oa]?)",
        conflict=r"(?:conflitto|contraddizion[ei]|contrasto)",
        one_by_one=r"un[oa] (?:per|alla) un[oa]",
    ),
    _Language(
        stems="primeir,segund,terceir,últim,cada,anterior,posterior,um por,uma por,um a ",
        place=r"(?:primeir[oa]|segund[oa]|terceir[oa]|últim[oa])",
        document=r"(?:documento|texto|trecho|passage[mn]|fonte|artigo)s?",
        each=r"cada",
        conflict=r"(?:conflito|contradição|contradições|divergência)s?",
        one_by_one=r"um[a]? (?:por|a) um[a]?",
    ),
    _Language(
        stems="eerste,tweede,derde,vierde,vijfde,laatste,latere,eerdere,onderste,bovenste,"
        "elk,ieder,voor ",
        place=r"(?:eerste|tweede|derde|vierde|vijfde|laatste|voorlaatste|latere|eerdere|onderste"
        r"|bovenste)",
        document=r"(?:document|tekst|passage|fragment|bron|artikel)(?:en|s)?",
        each=r"(?:elke?|iedere?)",
        conflict=r"(?:conflict|tegenstrijdig\w*|tegenspraak)(?:en)?",
        one_by_one=r"één voor één|een voor een",
    ),
    _Language(
        stems="перв,втор,трет,четв,последн,кажд,поздн,нижн,верхн,по одному,по очереди",
        place=r"(?:перв|втор|треть|четв[её]рт|последн|предпоследн)\w{1,3}",
        document=r"(?:документ|текст|отрыв\w?к|фрагмент|стать)\w{0,3}",
        each=r"кажд\w{2,3}",
        conflict=r"(?:противоречи|конфликт|расхождени)\w{0,3}",
        one_by_one=r"по одному|по очереди",
    ),
)
# Adjectives that only with a conflict say which place counts.
_OTHER_PLACES = (
    r"(?:spätere|frühere|untere|obere)[nmrs]?|weiter (?:unten|oben)|zu(?:letzt|erst)"
    r"|plus (?:haut|bas)|précédente?|suivante?|anterior|posterior|más (?:abajo|arriba)"
    r"|precedente|successiv[oa]|поздн\w+|нижн\w+|верхн\w+"
)
_ALSO_PLACES = r"\b(?:ersten?|erste[ms]) (?:mit|und|oder) (?:de[mnr] |das )?zweiten?"
_ALL = r"\b(?:übersetze|korrigiere|bewerte|ordne)\s+alle\b"
_CITED = re.compile(
    r"\b(?:zitier|beleg|cit[aeo]|citez|verwijs|verwend|utilis|benutz|cité|цитир|ссыл|использ)"
    r"|lies|lis |lee |leggi|leia|lees|прочита|引用|出典|인용|출처"
)
_PRECEDENCE = (
    r"\b(?:letzte|erste|spätere|frühere) gilt|\b(?:dernier|premier) fait foi"
    r"|\b(?:latere|laatste|eerste|eerdere|onderste|bovenste) \w+ (?:heeft|krijgt) voorrang"
)


class Phrases(NamedTuple):
    """The phrases of one language."""

    stems: tuple[str, ...]
    place: re.Pattern[str]
    each: re.Pattern[str]
    order: re.Pattern[str]  # which place counts, or that the documents follow one another


def _phrases(of: _Language) -> Phrases:
    places = rf"\b{of.place} (?:\w+ )?{of.document}\b"
    return Phrases(
        tuple(of.stems.split(",")),
        re.compile(places),
        re.compile(rf"\b{of.each} (?:\w+ )?{of.document}\b"),
        re.compile(
            rf"\b(?:{of.conflict})\b{_GAP}\b(?:{of.place}|{_OTHER_PLACES})\b(?! (?:datum|date"
            rf"|fecha|data|дат\w|version|fassung))|\b{of.document}\b{_GAP}\b(?:{of.one_by_one})\b"
        ),
    )


_PHRASES = tuple(map(_phrases, _LANGUAGES))
_SORTED_STEMS = (
    *(
        "reihenfolge",
        "geordnet",
        "chronologisch",
        " ordre",
        "classés",
        "orden",
        "хронолог",
        " alle",
    ),
    *(" gilt", "fait foi", "voorrang", "ersten", "erste", "plus ancien", "plus récent"),
)
_SORTED = re.compile(
    rf"{_PRECEDENCE}|{_ALL}|{_ALSO_PLACES}"
    r"|\b(?:dieser|gleichen|derselben|angegebenen)\s+reihenfolge|(?:zeitlich|nach datum)\s+geordnet"
    r"|chronologisch|\b(?:même|cet)\s+ordre|\bclassés\s+par\s+date|\b(?:mismo|ese|este)\s+orden\b"
    r"|\bordenad[oa]s\s+por|\bin\s+der\s+reihenfolge\s+ihr(?!er relevanz)|du plus (?:ancien|récent)"
    r" au plus|хронологическ"
)
_ASIAN_PLACES = re.compile(
    r"(?:第|最后)[一二三四五六七八九十\d]{0,3}[个個份篇段条]?(?:文[档檔件本章]|[资資]料|片段|段落|篇|来源|來源)"
    r"|(?:\d{1,2}|[一二三四五])(?:番目|つ目|件目)の(?:文[書章]|資料|ドキュメント|テキスト|段落)"
    r"|最[初後]の(?:文[書章]|資料|ドキュメント|テキスト|段落)"
    r"|(?:[첫두세네] ?번째|마지막) ?(?:문서|텍스트|글|자료|문단)"
)
_ASIAN = re.compile(
    r"(?:翻译|分类|打分|评分|总结|概括|标注|判断|输出|排序)[^。\n]{0,20}每[一个個篇条份]"
    r"|每[一个個篇条份][^。\n]{0,20}(?:翻译|分类|打分|评分|总结|概括|标注|判断|输出)"
    r"|(?:文档|资料|段落|片段)[^。\n]{0,6}排序|(?:最后|第一|后者|前者)[^。\n]{0,8}为准"
    r"|(?:文[档本章]|资料|段落|片段|以下|下面|它们)[^。\n]{0,8}按[^。\n]{0,6}顺序"
    r"|按[^。\n]{0,6}顺序排|按(?:原|给定|以上|上述|下列|相同|输入|提供)[^。\n]{0,4}顺序"
    r"|各文[書档檔]|逐[个個篇段一][^。\n]{0,12}(?:文[档檔件本章]|[资資]料|段落|片段)|按时间先后"
    r"|[后後前]面的(?:文档|资料|段落)(?:优先|为准)"
    r"|(?:冲突|矛盾|不一致)[^。\n]{0,20}(?:[后後前][面者]|最[后後]|第一|靠[后後前])"
    r"|(?:矛盾|食い違|競合)[^。\n]{0,30}(?:最[後初]|[後先下上前]の)"
    r"|각 ?(?:문서|텍스트|글|자료|문단)[^.\n]{0,20}(?:번역|요약|분류|평가|채점|점수)"
    r"|(?:모순|충돌|상충)[^.\n]{0,30}(?:마지막|첫|나중|아래|위의)"
)


def names_place(text: str, languages: Sequence[Phrases]) -> bool:
    """Return True for a text in lower case that names a document by its place."""
    if any(each.place.search(text) is not None for each in languages):
        return True
    return not text.isascii() and _ASIAN_PLACES.search(text) is not None


def asks_order(text: str, languages: Sequence[Phrases]) -> bool:
    """Return True for a text in lower case that asks for work on each document, or says which place
    counts or by what they are sorted."""
    if any(each.order.search(text) is not None for each in languages):
        return True
    if any(map(text.__contains__, _SORTED_STEMS)) and _SORTED.search(text) is not None:
        return True
    if not text.isascii() and _ASIAN.search(text) is not None:
        return True
    return any(
        _CITED.search(text, max(0, found.start() - 60), found.end() + 60) is None
        for each in languages
        for found in each.each.finditer(text)
    )


def languages_of(text: str) -> list[Phrases]:
    """Return the phrases of the languages that a text in lower case may be in."""
    return [each for each in _PHRASES if any(map(text.__contains__, each.stems))]
