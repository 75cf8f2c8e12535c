"""Measure what reordering costs a model's answers, with questions of your own.

Run: ragboost engine &
     python examples/eval_order.py

The same on the command line:
     ragboost eval-order questions.jsonl --endpoint http://127.0.0.1:8000 --model ragboost-small
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
DOCUMENTS = {
    "lease": "The lease was signed by Maria Lopez on 3 May 2024. It runs for five years.",
    "rent": "The monthly rent is 2,400 euros, due on the third working day of each month.",
    "pets": "Dogs and cats need the landlord's written consent; guide dogs need none.",
}
QUESTIONS = [  # question, right answer, documents in the retriever's order
    ("Who signed the lease?", "Maria Lopez", ["lease", "rent", "pets"]),
    ("How much is the rent?", "2,400 euros", ["rent", "lease", "pets"]),
    ("Who needs no consent?", "guide dogs", ["pets", "lease", "rent"]),
]


def main() -> None:
    """Write the questions to a file and evaluate three arms."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "questions.jsonl")
        rows = [
            {
                "question": question,
                "documents": [{"id": name, "text": DOCUMENTS[name]} for name in names],
                "answers": [answer],
            }
            for question, answer, names in QUESTIONS
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        command = [sys.executable, "-m", "ragboost", "eval-order", str(path), "--yes"]
        command += ["--endpoint", BASE_URL, "--model", "ragboost-small", "--max-tokens", "8"]
        command += ["--arm", "boosted", "--arm", "boosted-no-hints", "--arm", "keep-last-2"]
        sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
