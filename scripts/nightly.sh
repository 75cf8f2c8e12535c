#!/usr/bin/env bash
# What CI leaves out, some hours: long fuzzing, an hour of mixed traffic, faults,
# and the index against real engines again and again. Goes on after a failure.
set -uo pipefail
python=${1:?usage: nightly.sh PYTHON}
cd "$(dirname "$0")/.."
. scripts/stages.sh
failed=0
run() {    # NAME MODULE [ARGS]
    stage "$1" 14400 "$python" -m "benchmarks.$2" "${@:3}" || failed=1
}

run fuzz proxy.fuzz --requests 1000000
run fuzz-http proxy.fuzz_http --streams 100000
run soak proxy.soak --minutes 60
run faults scale.faults
run memory proxy.memory
for engine in embedded vllm sglang; do
    run "fidelity-$engine" engines.fidelity --engine $engine --requests 1000 --ends counted --concurrency 1 8 8 8
    run "large-$engine" engines.fidelity --engine $engine --cache large --ends counted --concurrency 1 8
    run "usage-$engine" engines.fidelity --engine $engine --signal usage --concurrency 1 8
done
for engine in vllm sglang; do
    run "hook-$engine" engines.fidelity --engine $engine --signal hook --requests 1000 --ends counted --concurrency 1 8
done
exit $failed
