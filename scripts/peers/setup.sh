#!/usr/bin/env bash
# Install the proxies that `python -m benchmarks.proxy` compares with, each into its own environment:
# about 1.7 GB of disk and three minutes. A peer that cannot be installed is reported and skipped.
#
# usage: setup.sh FOLDER
#
# nginx is the system's, or a Debian package unpacked into FOLDER without installation.
set -uo pipefail
folder=${1:?usage: setup.sh FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

for peer in sglang-router vllm-router contextpilot litellm; do
    venv="$folder/$peer"
    test -e "$venv/.installed" && continue
    "${PYTHON:-python3}" -m venv "$venv" &&
        "$venv/bin/python" -m pip install -q --no-deps -r "$here/requirements-$peer.txt" &&
        touch "$venv/.installed" || echo "$peer could not be installed" >&2
done

if ! command -v nginx > /dev/null && ! test -e "$folder/nginx/.installed"; then
    mkdir -p "$folder/nginx" && cd "$folder/nginx" &&
        apt-get download -q nginx && dpkg-deb -x nginx_*.deb . && usr/sbin/nginx -v &&
        touch .installed || echo "nginx could not be installed" >&2
fi
