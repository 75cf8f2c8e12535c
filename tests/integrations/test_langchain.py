"""LangChain components in chains built the ordinary way."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_classic", reason="comes with the dev extra")

from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    BaseCallbackHandler,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import create_retriever_tool

from ragboost import Booster
from ragboost.integrations.langchain import (
    BoostCompressor,
    BoostRetriever,
    DocumentPrompt,
    extra_body,
    format_documents,
)
from tests.integrations.corpus import FIRST, SECOND, TEXTS, words

FINDS = {"first": FIRST, "second": SECOND, "twice": ("lease", "lease", "rent")}
QA = ChatPromptTemplate.from_template("Answer.\n\n{context}\n\nQuestion: {input}")


class Shelf(BaseRetriever):
    """Finds what FINDS says."""

    calls: list[dict[str, Any]] = []  # noqa: RUF012

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        self.calls.append(kwargs)
        return found(query)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        self.calls.append({"is_async": True, **kwargs})
        return found(query)


class Recorder(FakeListChatModel):
    """Answers "yes" and keeps what it was asked."""

    responses: list[str] = ["yes"]  # noqa: RUF012
    asked: list[str] = []  # noqa: RUF012

    def _call(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> str:
        self.asked.append(messages[-1].text)
        return super()._call(messages, *args, **kwargs)


def found(query: str) -> list[Document]:
    """New documents each time, as a vector store returns them."""
    return [
        Document(page_content=TEXTS[name], id=name, metadata={"page": page})
        for page, name in enumerate(FINDS[query])
    ]


def test_a_second_question_begins_with_the_documents_of_the_first() -> None:
    retriever = BoostRetriever(base_retriever=Shelf())

    first, second = retriever.invoke("first"), retriever.invoke("second")

    assert words([d.page_content for d in first]) == ["lease", "rent", "pets"]
    assert words([d.page_content for d in second]) == ["lease", "pets", "parking"]


async def test_the_retriever_asks_asynchronously_and_passes_arguments_on() -> None:
    shelf = Shelf(calls=[])
    retriever = BoostRetriever(base_retriever=shelf)

    documents = await retriever.ainvoke("first", k=2, tenant="a")

    assert shelf.calls == [{"is_async": True, "tenant": "a"}]
    assert words([d.page_content for d in documents]) == ["lease", "rent"]


def test_metadata_and_ids_are_kept_and_the_originals_untouched() -> None:
    given = found("second")
    compressor = BoostCompressor()
    compressor.compress_documents(found("first"), "first")

    documents = compressor.compress_documents(given, "second")

    assert [(d.id, d.metadata["page"]) for d in documents] == [
        ("lease", 2),
        ("pets", 0),
        ("parking", 1),
    ]
    assert [d.metadata["ragboost"]["rank"] for d in documents] == [2, 0, 1]
    assert documents[0].metadata["ragboost"]["label"] == "[Doc_lease]"
    assert given == found("second")


def test_a_duplicate_leaves_its_metadata_with_the_document_that_stays() -> None:
    lease, rent = BoostRetriever(base_retriever=Shelf()).invoke("twice")

    assert lease.metadata["ragboost"]["duplicates"] == [{"page": 1}]
    assert "duplicates" not in rent.metadata["ragboost"]


def test_k_counts_different_documents() -> None:
    retriever = BoostRetriever(base_retriever=Shelf(), k=2)

    assert words([d.page_content for d in retriever.invoke("twice")]) == ["lease", "rent"]


def test_long_ids_neither_label_nor_tell_documents_apart() -> None:
    uuids = "6fdb2cbd-9bcf-4a2c-9ee7-2f3c9b9a2a11", "0b8d0f6c-6c0b-4b58-bb9b-5a3d2e3f7c55"
    documents = [Document(page_content="Same text.", id=uuid) for uuid in uuids]

    (document,) = BoostCompressor().compress_documents(documents, "q")

    assert document.id == uuids[0]
    assert len(document.metadata["ragboost"]["label"]) == len("[Doc_12345678]")


def test_blank_documents_come_last_as_they_are() -> None:
    blank = Document(page_content=" \n", metadata={"page": 9})

    documents = BoostCompressor().compress_documents([blank, *found("first")], "q")

    assert documents[-1] is blank
    assert [d.metadata["ragboost"]["rank"] for d in documents[:-1]] == [1, 2, 3]


def test_no_documents_are_no_documents() -> None:
    assert BoostCompressor().compress_documents([], "q") == []
    assert format_documents([]) == ""


async def test_the_compressor_works_in_the_compression_retriever() -> None:
    retriever = ContextualCompressionRetriever(
        base_compressor=BoostCompressor(), base_retriever=Shelf()
    )
    retriever.invoke("first")

    documents = await retriever.ainvoke("second")

    assert words([d.page_content for d in documents]) == ["lease", "pets", "parking"]


def test_a_chain_of_runnables_shares_the_prefix_and_tells_the_relevance_order() -> None:
    model = Recorder(asked=[])
    retriever = BoostRetriever(base_retriever=Shelf())
    chain = (
        {"context": retriever | format_documents, "input": RunnablePassthrough()}
        | QA
        | model
        | StrOutputParser()
    )

    assert chain.batch(["first", "second"], config={"max_concurrency": 1}) == ["yes", "yes"]

    first, second = model.asked
    start = f"Answer.\n\n[Doc_lease]\n{TEXTS['lease']}\n\n[Doc_"
    assert first.startswith(start)
    assert second.startswith(start)
    assert "by relevance" not in first
    assert "[Doc_pets] >> [Doc_parking] >> [Doc_lease]" in second
    assert second.index("by relevance") < second.index("Question: second")


def test_the_classic_chains_work_with_our_document_prompt() -> None:
    model = Recorder(asked=[])
    retriever = BoostRetriever(base_retriever=Shelf())
    combine = create_stuff_documents_chain(model, QA, document_prompt=DocumentPrompt())
    chain = create_retrieval_chain(retriever, combine)
    chain.invoke({"input": "first"})

    answer = chain.invoke({"input": "second"})

    assert [d.id for d in answer["context"]] == ["lease", "pets", "parking"]
    assert words(model.asked[-1]) == ["lease", "pets", "parking"]
    assert "[Doc_pets] >> [Doc_parking] >> [Doc_lease]" in model.asked[-1]


def test_the_applications_own_format_is_kept() -> None:
    """With the source that its answers cite."""
    template = PromptTemplate.from_template("<{source}> {page_content}")
    found = [Document(f"Text {i}.", id=f"d{i}", metadata={"source": f"{i}.pdf"}) for i in (1, 2)]
    boosted = BoostCompressor().compress_documents(found, "Who?")
    text = "[Doc_d1]\n<1.pdf> Text 1.\n\n[Doc_d2]\n<2.pdf> Text 2."
    assert format_documents(boosted, template) == text
    assert format_documents(found, template) == text.replace("[Doc_d1]\n", "").replace(
        "[Doc_d2]\n", ""
    )
    model = Recorder(asked=[])
    prompt = DocumentPrompt(template=template)
    combine = create_stuff_documents_chain(model, QA, document_prompt=prompt)
    combine.invoke({"input": "Who?", "context": boosted})
    assert text in model.asked[-1]


def test_a_classic_chain_without_our_prompt_only_gets_another_order() -> None:
    model = Recorder(asked=[])
    combine = create_stuff_documents_chain(model, QA)
    chain = create_retrieval_chain(BoostRetriever(base_retriever=Shelf()), combine)

    chain.invoke({"input": "first"})

    texts = "\n\n".join(TEXTS[name] for name in FIRST)
    assert model.asked == [f"Answer.\n\n{texts}\n\nQuestion: first"]


def test_a_retriever_tool_writes_labels_and_the_hint() -> None:
    retriever = BoostRetriever(base_retriever=Shelf())
    tool = create_retriever_tool(retriever, "search", "Finds.", document_prompt=DocumentPrompt())
    tool.invoke({"query": "first"})

    text = tool.invoke({"query": "second"})

    assert text.startswith("[Doc_lease]\n")
    assert text.endswith("[Doc_pets] >> [Doc_parking] >> [Doc_lease]")


def test_chains_of_one_model_share_a_booster() -> None:
    booster = Booster()
    BoostRetriever(base_retriever=Shelf(), booster=booster).invoke("first")

    documents = BoostCompressor(booster=booster).compress_documents(found("second"), "second")

    assert words([d.page_content for d in documents]) == ["lease", "pets", "parking"]


def test_tracers_see_both_retrievers() -> None:
    seen: list[list[str]] = []

    class Tracer(BaseCallbackHandler):
        def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:
            seen.append(words([d.page_content for d in documents]))

    retriever = BoostRetriever(base_retriever=Shelf())
    retriever.invoke("first")
    retriever.invoke("second", config={"callbacks": [Tracer()]})

    assert seen == [["pets", "parking", "lease"], ["lease", "pets", "parking"]]


def test_an_unknown_name_is_an_attribute_error() -> None:
    from ragboost.integrations import langchain

    with pytest.raises(AttributeError, match="no attribute 'BoostEverything'"):
        _ = langchain.BoostEverything
    assert set(langchain.__all__) <= set(dir(langchain))


def test_the_extra_body_shows_the_model_title_and_source() -> None:
    texts = [
        Document(page_content="one", metadata={"title": "Lease", "source": "lease.pdf", "page": 3}),
        Document(page_content="one", metadata={"source": Path("a/b.pdf")}),
        Document(page_content="two", metadata={"title": "x" * 201, "source": None}),
        Document(page_content="three", metadata={"title": "a\n b", "source": "a b"}),
        Document(page_content=" ", metadata={"source": "blank.pdf"}),
    ]
    assert extra_body(texts)["ragboost"]["documents"] == [
        {"title": "Lease, lease.pdf", "text": "one"},
        {"title": "a/b.pdf", "text": "one"},
        {"text": "two"},
        {"title": "a b", "text": "three"},
    ]
    shown = extra_body(texts[:2], show=["page"])["ragboost"]["documents"]
    assert shown == [{"title": "3", "text": "one"}, {"text": "one"}]
    assert extra_body(texts[:1], show=())["ragboost"]["documents"] == [{"text": "one"}]
