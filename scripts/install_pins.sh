#!/usr/bin/env bash
# Install pinned packages, without their dependencies, and say which ones cannot be had.
#
# usage: install_pins.sh PYTHON REQUIREMENTS
#
# First all at once, which is fast. If that fails, one by one, three tries each: what was already
# downloaded comes from pip's cache, and what still fails is named. After five such it gives up.
set -euo pipefail
python=${1:?usage: install_pins.sh PYTHON REQUIREMENTS}
requirements=${2:?usage: install_pins.sh PYTHON REQUIREMENTS}
pip=("$python" -m pip install -q --no-deps)

if "${pip[@]}" -r "$requirements"; then
    exit 0
fi
echo "$requirements: not all could be installed at once, trying one by one ..." >&2
mapfile -t pins < <(grep -vE '^[[:space:]]*(#|$)' "$requirements")
missing=()
for pin in "${pins[@]}"; do
    for pause in 2 10 0; do
        "${pip[@]}" "$pin" && continue 2
        sleep "$pause"
    done
    missing+=("$pin")
    [ ${#missing[@]} -lt 5 ] || break
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "could not be installed, of $requirements: ${missing[*]}" >&2
    exit 1
fi
