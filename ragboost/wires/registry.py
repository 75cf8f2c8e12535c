"""All wires, and what is looked for in a body whose API is unknown: the fields of all of them."""

from collections.abc import Callable, Iterable, Mapping

from ragboost.wires.anthropic_messages import ANTHROPIC_MESSAGES
from ragboost.wires.openai_chat import OPENAI_CHAT
from ragboost.wires.openai_completions import OPENAI_COMPLETIONS
from ragboost.wires.openai_responses import OPENAI_RESPONSES
from ragboost.wires.wire import Names, WireApi

WIRES = (OPENAI_CHAT, OPENAI_COMPLETIONS, ANTHROPIC_MESSAGES, OPENAI_RESPONSES)


def _union(names_of: Callable[[WireApi], Iterable[str]]) -> Names:
    """Return the names of all wires, each once, without empty ones."""
    return tuple(dict.fromkeys(name for wire in WIRES for name in names_of(wire) if name))


def _merged(maps: Callable[[WireApi], Mapping[str, str]]) -> Mapping[str, str]:
    return {kind: name for wire in WIRES for kind, name in maps(wire).items()}


# The wires with messages by the field of these; those of one field agree on `content`.
BY_MESSAGES = {wire.messages: wire for wire in reversed(WIRES) if wire.messages}
CONTENTS = _union(lambda wire: [wire.content])
LISTS = _union(lambda wire: [wire.messages])
PROMPTS = _union(lambda wire: [wire.prompt])
REWRITTEN_LISTS = _union(lambda wire: [wire.messages] if wire.is_rewritten else [])
INSTRUCTIONS = _union(lambda wire: wire.instructions)
TOOLS = _union(lambda wire: wire.tools)
STORED = _union(lambda wire: wire.stored)
# Lists in which the order is part of the text.
ORDERED = _union(
    lambda wire: (
        *(wire.messages, wire.content, wire.prompt, *wire.instructions),
        *(*wire.result_items.values(), *wire.ordered),
    )
)

INSTRUCTION_ROLES = _union(lambda wire: wire.instruction_roles)
TOOL_ROLES = _union(lambda wire: wire.tool_roles)
RESULT_ITEMS = _merged(lambda wire: wire.result_items)
ALL_RESULT_ITEMS = {**RESULT_ITEMS, **_merged(lambda wire: wire.other_result_items)}
SEARCH_ITEMS = _merged(lambda wire: wire.search_items)
RESULT_BLOCKS = _merged(lambda wire: wire.result_blocks)
INPUT_BLOCKS = _merged(lambda wire: wire.input_blocks)
# A part of these types is a text; so is a part without a type.
TEXT_TYPES = (None, *_union(lambda wire: wire.text_types))
RESULT_TEXT_TYPES = (*TEXT_TYPES, *_union(lambda wire: wire.result_text_types))

USAGES = _union(lambda wire: wire.usage)
USAGE_HOLDERS = _union(lambda wire: wire.usage_holders)
LAST_EVENTS = _union(lambda wire: wire.last_events)
