#!/usr/bin/env bash
# Install SGLang for the CPU into a virtual environment: about 1.6 GB of disk and a minute, with pip three.
#
# usage: setup_sglang.sh VENV
#
# The pins need torch's CPU build. If your package index lacks it, point pip at PyTorch's CPU wheels
# first (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL).
set -euo pipefail
venv=${1:?usage: setup_sglang.sh VENV}
here=$(cd "$(dirname "$0")" && pwd)
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
bash "$here/../install_pins.sh" "$venv/bin/python" "$here/requirements-sglang-cpu.txt"
# RAGBoost's plug-in runs inside the engine and needs none of RAGBoost's other dependencies.
"$venv/bin/python" -m pip install -q --no-deps -e "$here/../.."
touch "$venv/.installed"
