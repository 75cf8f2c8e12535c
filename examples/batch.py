"""Order a file of requests offline, and see the predicted hit rate before and after.

Run: python examples/batch.py
"""

import json
import tempfile
from pathlib import Path

from ragboost.batch import run_batch


def main() -> None:
    """Write six requests over four documents, plan them, and print the new order."""
    texts = {name: f"Document {name}. " * 200 for name in "abcd"}
    lists = ("abc", "dcb", "bac", "cdb", "cab", "bdc")
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "requests.jsonl"), Path(folder, "ordered.jsonl")
        source.write_text(
            "".join(
                json.dumps(
                    {
                        "id": f"q{number}",
                        "question": "Which one?",
                        "documents": [{"id": name, "text": texts[name]} for name in names],
                    }
                )
                + "\n"
                for number, names in enumerate(lists)
            )
        )
        summary = run_batch(source, output)
        for line in map(json.loads, output.read_text().splitlines()):
            print(line["id"], [document["id"] for document in line["documents"]])
    print(summary)


if __name__ == "__main__":
    main()
