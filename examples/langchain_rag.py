"""LangChain with one added line: the second prompt begins with documents of the first.

Run: ragboost serve --embedded &
     python examples/langchain_rag.py   (needs: the extra langchain, langchain-openai)
"""

import sys

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from openai import APIConnectionError

from ragboost.integrations.langchain import BoostRetriever, format_documents

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
TEXTS = {
    "lease": "The lease was signed by Maria Lopez on 3 May 2024 for a term of five years. ",
    "rent": "The monthly rent under the lease is 2,400 euros and rises with the index. ",
    "pets": "Pets need the landlord's written consent; guide dogs do not. ",
    "term": "The lease ends after a term of five years unless the tenant extends it. ",
}


def search(question: str) -> list[Document]:
    """Return three documents by words shared with the question, in place of a vector store."""
    words = set(question.lower().strip("?").split())
    found = [
        Document(page_content=text * 10, id=name, metadata={"source": f"{name}.pdf"})
        for name, text in TEXTS.items()
    ]
    found.sort(key=lambda document: -len(words & set(document.page_content.lower().split())))
    return found[:3]


def main() -> None:
    """Ask two questions, and show the answers and the cached tokens."""
    retriever = BoostRetriever(base_retriever=RunnableLambda(search))  # the added line
    prompt = ChatPromptTemplate.from_template(
        "Answer from these documents.\n\n{context}\n\nQuestion: {question}"
    )
    model = ChatOpenAI(
        base_url=BASE_URL, api_key="unused", model="ragboost-small", max_completion_tokens=8
    )
    chain = (
        {"context": retriever | format_documents, "question": RunnablePassthrough()}
        | prompt
        | model
    )
    for question in ("who signed the lease?", "what is the monthly rent under the lease?"):
        answer = chain.invoke(question)
        cached = answer.usage_metadata["input_token_details"]["cache_read"]
        print(f"{question} {answer.text!r}")
        print(f"  {answer.usage_metadata['input_tokens']} prompt tokens, {cached} cached")


if __name__ == "__main__":
    try:
        main()
    except APIConnectionError:
        sys.exit(f"No server at {BASE_URL}: start `ragboost serve --embedded`, or give a base URL")
