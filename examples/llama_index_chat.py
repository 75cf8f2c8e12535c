"""LlamaIndex chat engine that keeps each document in the history once.

Run: ragboost serve --embedded &
     python examples/llama_index_chat.py
     (needs: the extra llama-index, llama-index-llms-openai-like)
"""

import sys

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

from ragboost.integrations.llama_index import BoostChatEngine

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
TEXTS = {
    "lease": "The lease was signed by Maria Lopez on 3 May 2024 for a term of five years. ",
    "rent": "The monthly rent under the lease is 2,400 euros and rises with the index. ",
    "pets": "Pets need the landlord's written consent; guide dogs do not. ",
    "term": "The lease ends after a term of five years unless the tenant extends it. ",
}


class Words(BaseRetriever):
    """Retriever by words shared with the question, in place of a vector index."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        words = set(query_bundle.query_str.lower().strip("?").split())
        found = [
            NodeWithScore(
                node=TextNode(text=text * 10, id_=name),
                score=len(words & set(text.lower().split())),
            )
            for name, text in TEXTS.items()
        ]
        return sorted(found, key=lambda node: -node.score)[:3]


def main() -> None:
    """Ask three questions, and show the documents sent with each."""
    llm = OpenAILike(
        model="ragboost-small",
        api_base=BASE_URL,
        api_key="unused",
        is_chat_model=True,
        context_window=32_768,
        max_tokens=8,
    )
    chat = BoostChatEngine(Words(), llm, system_prompt="Answer from the documents.")
    for question in ("who signed the lease?", "what is the rent?", "what is the term?"):
        chat.chat(question)
    for message in chat.chat_history[::2]:
        turn = message.additional_kwargs["ragboost"]
        print(f"{turn['question']} sent {[label for _, label, _ in turn['documents']]}")


if __name__ == "__main__":
    main()
