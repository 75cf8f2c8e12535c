#!/usr/bin/env bash
# Run another release of vLLM on the CPU: its Python files over the CPU kernels of .venv-vllm.
#
# usage: overlay_vllm.sh VERSION VENV      for example 0.33.0 build/venv-vllm-0.33.0
#
# For releases without a CPU wheel: it shows whether chunk reuse finds the engine's parts where it
# looks, and whether they do what the tests demand; not whether kernels of that release are right.
#
#     VLLM_VENV=build/venv-vllm-0.33.0 python -m pytest -m real_engine tests/engines -k 'not sglang'
set -euo pipefail
version=${1:?usage: overlay_vllm.sh VERSION VENV}
venv=${2:?usage: overlay_vllm.sh VERSION VENV}
root=$(cd "$(dirname "$0")/../.." && pwd)
base=$("$root/.venv-vllm/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
python3 -m venv --without-pip "$venv"
layer="$(cd "$venv" && pwd)/layer"
rm -rf "$layer" && mkdir "$layer"
"$root/.venv-vllm/bin/python" -m pip download -q --no-deps -d "$layer" "vllm==$version"
(cd "$layer" && python3 -m zipfile -e vllm-*.whl . && rm vllm-*.whl vllm/*.so && cp "$base"/vllm/*.so vllm/)
# What this release imports beyond the packages of .venv-vllm.
"$root/.venv-vllm/bin/python" -m pip install -q --no-deps --target "$layer" orjson==3.13.0
# vLLM chooses its platform by the version's suffix.
mv "$layer/vllm-$version.dist-info" "$layer/vllm-$version+cpu.dist-info"
rm -f "$layer/vllm-$version+cpu.dist-info/RECORD"
sed -i "s/^Version: .*/Version: $version+cpu/" "$layer/vllm-$version+cpu.dist-info/METADATA"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# `addsitedir` follows the .pth files of .venv-vllm, RAGBoost's own among them: without it its flags
# would be empty, and vLLM would start without chunk reuse.
printf '%s\nimport site; site.addsitedir("%s")\n' "$layer" "$base" > "$site/layers.pth"
sed "1s|.*|#!$(cd "$venv" && pwd)/bin/python|" "$root/.venv-vllm/bin/vllm" > "$venv/bin/vllm"
chmod +x "$venv/bin/vllm"
touch "$venv/.installed"
(cd "$venv" && bin/python -m ragboost.chunk_cache vllm > /dev/null)
"$venv/bin/python" -W ignore -c 'import vllm; print("vLLM", vllm.__version__)'
