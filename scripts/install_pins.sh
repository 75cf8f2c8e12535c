#!/usr/bin/env bash
# Install pinned packages without their dependencies, and report those that cannot be installed. Pins
# with hashes accept these files only.
#
# usage: install_pins.sh PYTHON REQUIREMENTS
#
# Tries all at once first, with the uv that the variable UV names (seconds), then with pip (minutes). If
# that fails, installs them one by one, with three attempts each; pip's cache keeps earlier downloads.
# Stops after five failed packages.
set -euo pipefail
python=${1:?usage: install_pins.sh PYTHON REQUIREMENTS}
requirements=${2:?usage: install_pins.sh PYTHON REQUIREMENTS}
pip=("$python" -m pip install -q --no-deps)

if [ -x "${UV:-}" ] && "$UV" pip install -q --no-deps --python "$python" -r "$requirements"; then
    exit 0
fi
if "${pip[@]}" -r "$requirements"; then
    exit 0
fi
echo "$requirements: could not install all at once, trying one by one ..." >&2
# A pin and its hashes are one line that continues.
mapfile -t pins < <(sed -e ':more' -e '/\\$/{N;s/\\\n//;b more' -e '}' "$requirements" | grep -vE '^[[:space:]]*(#|$)')
missing=()
one=$(mktemp)
trap 'rm -f "$one"' EXIT
for pin in "${pins[@]}"; do
    echo "$pin" > "$one"
    for pause in 2 10 0; do
        "${pip[@]}" -r "$one" && continue 2
        sleep "$pause"
    done
    missing+=("${pin%% *}")
    [ ${#missing[@]} -lt 5 ] || break
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "$requirements: could not install ${missing[*]}" >&2
    exit 1
fi
