"""The facts about one API that the proxy needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class UsageFields:
    """Paths of the counts in a usage object; of several paths the first with a count holds.

    A path is one name, or a name and one within it; `*` is the sum of all within.
    """

    prompt: Names = ()
    cached: Names = ()
    written: Names = ()
    reused: Names = ()  # KV from stored chunks, not computed again
    recomputed: Names = ()  # KV from stored chunks, computed again
    # Cached and written tokens count in addition to the prompt's, and one of them must be there.
    is_additive: bool = False


@dataclass(frozen=True, kw_only=True)
class WireApi:
    """Places in the bodies of one API that the proxy reads.

    A body does not say for which API it is meant, and engines accept the fields of several: what
    is looked for are the names of all wires, `registry.ANY`. What has a type is found by it.
    """

    endpoint: str = ""  # in metrics
    path: str = ""
    summary: str = ""  # in the OpenAPI document
    has_stream_options: bool = False  # knows `stream_options.include_usage`

    messages: Names = ()  # the field with the list of messages
    prompts: Names = ()  # the field with a prompt that is one text
    # Of these fields, those into whose question documents may be written, and whose messages are
    # sent again as they were sent.
    rewritten: Names = ()
    instructions: Names = ()  # fields that the model reads before the messages
    tools: Names = ()
    head_options: Names = ()  # other fields that change how the whole prompt is rendered
    message_options: Names = ()  # the same, of the messages only
    stored: Names = ()  # fields that put a conversation stored at the backend before the messages

    content: Names = ("content",)  # of a message
    instruction_roles: Names = ()
    tool_roles: Names = ()  # of messages that are a tool's result
    result_items: Mapping[str, str] = field(default_factory=dict)  # results of tools
    opaque_items: Mapping[str, str] = field(default_factory=dict)  # the same, without documents
    search_items: Mapping[str, str] = field(default_factory=dict)  # lists of search results
    result_blocks: Mapping[str, str] = field(default_factory=dict)
    text_types: Names = ()  # of the parts that are texts
    image_types: Names = ()
    result_text_types: Names = ()  # further ones in results of tools
    ordered: Names = ()  # further lists whose order is part of the text

    usage: Names = ("usage",)  # fields with a usage object
    usage_holders: Names = ()  # fields of events that hold an answer with usage
    counts: tuple[UsageFields, ...] = ()
    last_events: Names = ()  # types of the events with which streams end
