"""What applications send: their default templates in our own words, a row each.

`docs/formats.md` shows these rows to users.
"""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

Write = Callable[[Sequence[str], str], str]


class Application(NamedTuple):
    """A template of an application, and whether its documents are found at once."""

    name: str
    role: str  # of the message with the documents
    write: Write  # from documents and question
    evidence: bool = False  # found once documents have come back


def _file(text: str) -> str:
    return f"{text.split()[1]}.pdf"


def open_webui(documents: Sequence[str], question: str) -> str:
    listed = "\n".join(
        f'<source id="{number}" name="{_file(text)}">{text}</source>'
        for number, text in enumerate(documents, 1)
    )
    return (
        "### Task:\nAnswer the query with the context. Cite as [id], and only where the <source> "
        'tag has an id, as in <source id="1">.\n\n### Guidelines:\n- Say so if you do not know.\n'
        '- Answer in the language of the query.\n\n### Example:\n* "The study shows more [1]."\n\n'
        f"<context>\n{listed}\n</context>\n\n{question}"
    )


def anything_llm(documents: Sequence[str], question: str) -> str:
    listed = "".join(
        f"[CONTEXT {number}]:\n{text}\n[END CONTEXT {number}]\n\n"
        for number, text in enumerate(documents)
    )
    return f"Answer the user's question from this conversation.\nContext:\n{listed}"


def ragflow(documents: Sequence[str], question: str) -> str:
    listed = "\n------\n".join(
        f"\nID: {number}\n├── Title: {_file(text)}\n└── Content:\n{text}\n"
        for number, text in enumerate(documents)
    )
    return (
        "You are an assistant. Summarize the knowledge base to answer, and cite as [ID:i].\n"
        f"Here is the knowledge base:\n------\n{listed}\n------\nThe above is the knowledge base."
    )


def dify(documents: Sequence[str], question: str) -> str:
    listed = "\n".join(text.replace("\n\n", "\n") for text in documents)
    return (
        "Use the following context as your learned knowledge, inside <context></context> tags.\n\n"
        f"<context>\n{listed}\n</context>\n\nWhen you answer: if you do not know, say so."
    )


def fast_gpt(documents: Sequence[str], question: str) -> str:
    listed = "\n------\n".join(
        json.dumps(
            {"id": f"{len(text)}a", "sourceName": _file(text), "content": text},
            ensure_ascii=False,
            indent=2,
        )
        for text in documents
    )
    return (
        f"使用 <Reference></Reference> 中的内容作为参考:\n\n<Reference>\n{listed}\n</Reference>\n\n"
        "回答要求\n- 避免提及你是从 <Reference></Reference> 获取的知识。\n"
        "- 保持答案与 <Reference></Reference> 中描述的一致。\n- 使用与问题相同的语言回答。"
    )


def perplexica(documents: Sequence[str], question: str) -> str:
    listed = "\n".join(
        f"{number}. {_file(text)} " + text.replace("\n\n", " ")
        for number, text in enumerate(documents, 1)
    )
    return (
        "You are skilled at web search. Cite with [number] notation.\n\n"
        f"<context>\n{listed}\n</context>\n\nThe day is given by the user."
    )


def perplexica_results(documents: Sequence[str], question: str) -> str:
    listed = "\n".join(
        f"<result index={number} title={' '.join(text.split()[:4])}>{text}</result>"
        for number, text in enumerate(documents, 1)
    )
    return (
        'Cite with [number] notation.\n\n<context>\n<search_results note="You can cite these">\n'
        f"{listed}\n</search_results>\n</context>\n"
    )


def lobe_chat(documents: Sequence[str], question: str) -> str:
    listed = "\n".join(
        f'<chunk fileId="f{len(text)}" fileName="{_file(text)}" similarity="0.5">{text}</chunk>'
        for text in documents
    )
    return (
        f"Here are chunks of the user's knowledge base.\n<retrieved_chunks>\n{listed}\n"
        f"</retrieved_chunks>\n\n<user_query>{question}</user_query>"
    )


def libre_chat(documents: Sequence[str], question: str) -> str:
    listed = "\n".join(
        f"<document>\n<filename>{_file(text)}</filename>\n<context>\n{text}\n</context>\n</document>"
        for text in documents
    )
    return (
        f"The user has attached files:\n<documents>\n{listed}\n</documents>\n\n"
        "Use the context as your learned knowledge."
    )


def chatchat(documents: Sequence[str], question: str) -> str:
    listed = "\n\n".join(documents)
    return (
        "【指令】根据已知信息,简洁和专业的来回答问题。如果无法得到答案,请说不知道。\n\n"
        f"【已知信息】{listed}\n\n【问题】{question}"
    )


def chinese_labels(documents: Sequence[str], question: str) -> str:
    listed = "\n\n".join(f"文档{number}\uff1a{text}" for number, text in enumerate(documents, 1))
    return f"<已知信息>\n{listed}\n</已知信息>\n\n问题\uff1a{question}"


def haystack(documents: Sequence[str], question: str) -> str:
    listed = "".join(f"\n    {text}\n" for text in documents)
    return (
        f"Given these documents, answer the question.\nDocuments:\n{listed}\nQuestion: {question}"
    )


def stuff(documents: Sequence[str], question: str) -> str:
    listed = "\n\n".join(documents)
    return (
        "Use the following pieces of context to answer the question at the end. If you don't know "
        f"the answer, say so.\n\n{listed}\n\nQuestion: {question}\nHelpful Answer:"
    )


def retrieval_chain(documents: Sequence[str], question: str) -> str:
    listed = "\n\n".join(documents)
    return f"You answer questions with the retrieved context below. Be brief.\n\n{listed}"


def tutorial_tool(documents: Sequence[str], question: str) -> str:
    return "\n\n".join(f"Source: {{'f': '{_file(t)}'}}\nContent: {t}" for t in documents)


def tutorial(documents: Sequence[str], question: str) -> str:
    listed = tutorial_tool(documents, question)
    return f"Use the retrieved context below to answer. If it is not in there, say so.\n\n{listed}"


def hub_prompt(documents: Sequence[str], question: str) -> str:
    listed = "\n\n".join(documents)
    return (
        "You answer questions with the following pieces of retrieved context. Use three sentences."
        f"\nQuestion: {question}\nContext: {listed}\nAnswer:"
    )


def retriever_tool(documents: Sequence[str], question: str) -> str:
    return "\n\n".join(documents)


def printed(documents: Sequence[str], question: str) -> str:
    listed = ", ".join(
        f"Document(id='{len(t)}', metadata={{'source': '{_file(t)}'}}, page_content={t!r})"
        for t in documents
    )
    return f"Answer from the context.\nContext: [{listed}]\nQuestion: {question}"


def _llama_index(listed: str, question: str) -> str:
    dashes = "---------------------"
    return (
        f"Context information is below.\n{dashes}\n{listed}\n{dashes}\nGiven the context "
        f"information and not prior knowledge, answer the query.\nQuery: {question}\nAnswer: "
    )


def llama_index(documents: Sequence[str], question: str) -> str:
    return _llama_index("\n\n".join(documents), question)


def llama_index_metadata(documents: Sequence[str], question: str) -> str:
    nodes = (f"page_label: 4\nfile_path: docs/{_file(text)}\n\n{text}" for text in documents)
    return _llama_index("\n\n".join(nodes), question)


def llama_index_chat(documents: Sequence[str], question: str) -> str:
    nodes = "\n\n".join(f"file_path: docs/{_file(text)}\n\n{text}" for text in documents)
    dashes = "--------------------"
    return (
        "The following is a friendly conversation. The assistant uses the context documents.\n"
        f"Here are the relevant documents for the context:\n{dashes}\n{nodes}\n{dashes}\n"
        "Answer in detail."
    )


def llama_index_citations(documents: Sequence[str], question: str) -> str:
    listed = "\n\n".join(f"Source {n}:\n{text}\n" for n, text in enumerate(documents, 1))
    return (
        "Please provide an answer based solely on the provided sources. For example:\nSource 1:\n"
        "The sky is red in the evening.\nSource 2:\nWater is wet.\nQuery: When?\n"
        "Answer: In the evening [1].\n"
        f"Now it's your turn. Below are the sources:\n------\n{listed}\n------\n"
        f"Query: {question}\nAnswer: "
    )


def onyx(documents: Sequence[str], question: str) -> str:
    listed = "\n\n\n".join(
        f"DOCUMENT {number}: {_file(text)}\nSource: Website\nUpdated: June 01, 2026 09:30\n"
        f"```\n{text}\n```"
        for number, text in enumerate(documents, 1)
    )
    return (
        f"Refer to the following context documents.\n\nCONTEXT:\n{listed}\n\n\n\nCite with [1].\n\n"
        f"QUERY: {question}"
    )


def onyx_search_tool(documents: Sequence[str], question: str) -> str:
    results = [
        {"document": number, "title": _file(text), "content": text}
        for number, text in enumerate(documents, 1)
    ]
    return json.dumps({"results": results}, indent=4)


def flowise(documents: Sequence[str], question: str) -> str:
    listed = "\n".join(f"<doc id='{i}'>{text}</doc>" for i, text in enumerate(documents))
    return (
        "Answer with the context. Anything between the following `context` html blocks is "
        f"retrieved.\n\n<context>\n    {listed}\n<context/>\n\nREMEMBER: no made-up answers."
    )


def n8n_tool(documents: Sequence[str], question: str) -> str:
    results = [
        {"type": "text", "text": json.dumps({"pageContent": text, "metadata": {"n": len(text)}})}
        for text in documents
    ]
    return json.dumps(results)


def continue_dev(documents: Sequence[str], question: str) -> str:
    listed = "\n\n".join(f"```{_file(text)} (1-20)\n{text}\n```" for text in documents)
    return f"{listed}\n\nUse the above code to answer the following question.\n\n{question}"


def cline(documents: Sequence[str], question: str) -> str:
    listed = "\n\n".join(
        f'<file_content path="src/{_file(text)}">\n{text}\n</file_content>' for text in documents
    )
    return f"<task>\n{question}\n</task>\n\n{listed}"


APPLICATIONS = [
    Application("Open WebUI", "user", open_webui),
    Application("Open WebUI, as system message", "system", open_webui),
    Application("AnythingLLM", "system", anything_llm),
    Application("RAGFlow", "system", ragflow),
    Application("Dify", "system", dify, evidence=True),
    Application("FastGPT", "system", fast_gpt),
    Application("Perplexica", "system", perplexica, evidence=True),
    Application("Perplexica: elements", "system", perplexica_results),
    Application("LobeChat", "user", lobe_chat),
    Application("LibreChat", "system", libre_chat),
    Application("Langchain-Chatchat", "user", chatchat, evidence=True),
    Application("Chinese labels", "user", chinese_labels),
    Application("Haystack", "user", haystack, evidence=True),
    Application("LangChain: stuff", "user", stuff, evidence=True),
    Application("LangChain: create_retrieval_chain", "system", retrieval_chain, evidence=True),
    Application("LangChain: tutorial", "system", tutorial, evidence=True),
    Application("LangChain: hub prompt", "user", hub_prompt, evidence=True),
    Application("LangChain: printed documents", "user", printed),
    Application("LlamaIndex: query engine", "user", llama_index, evidence=True),
    Application("LlamaIndex: query engine, metadata", "user", llama_index_metadata),
    Application("LlamaIndex: chat engine, metadata", "system", llama_index_chat),
    Application("LlamaIndex: citations", "user", llama_index_citations),
    Application("Onyx", "user", onyx, evidence=True),
    Application("Flowise", "system", flowise),
    Application("Continue", "user", continue_dev),
    Application("Cline", "user", cline),
]

# Results of tools are not ordered: a document that is there again becomes a reference.
TOOLS = [
    Application("Onyx: search tool", "tool", onyx_search_tool),
    Application("LangChain: tutorial, as a tool", "tool", tutorial_tool),
]
# Nor is there a reference without marks, or to a document that is quoted JSON.
TOOLS_LEFT_ALONE = [
    Application("LangGraph: retriever tool", "tool", retriever_tool),
    Application("n8n: vector store tool", "tool", n8n_tool),
]
