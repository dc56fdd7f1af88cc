#!/usr/bin/env bash
# Runs beside what bundle.sh made, on the machine with the GPU:  bash run.sh OUT [smoke|profile|profile-70b|steps|engine]
#
# Each of them ends by itself in under ten minutes and leaves whole files in OUT, also when it is cut off; the same
# command again goes on where it was.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "${1:?usage: run.sh OUT [smoke|profile|profile-70b|steps|engine]}" && cd "$1" && pwd)
site=${SITE:-/tmp/servesim-site}
budget=${BUDGET_S:-540}
library=$site/_vllm_fa3_C.abi3.so
wheels() { python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$site" "$@"; }
unpack() { # unpack FILE.xz TARGET
    python3 -c "import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2] + '.partial', 'wb'), 1 << 20)" "$1" "$2"
    mv "$2.partial" "$2"
}
if [ ! -f "$library" ]; then
    wheels "$here"/*.whl
    unpack "$here/_vllm_fa3_C.abi3.so.xz" "$library"
fi
# vLLM comes in two parts, perhaps one after the other
own=$site/vllm/_C_stable_libtorch.abi3.so
if [ -d "$here/vllm-a" ] && [ ! -f "$own" ]; then
    tar -C "$site" -xJf "$here/vllm-a/vllm_py.tar.xz"
    cp "$library" "$site/vllm/vllm_flash_attn/"
    unpack "$here/vllm-a/_C_stable_libtorch.abi3.so.xz" "$own"
fi
if [ -d "$here/vllm-b" ] && [ ! -d "$site/xgrammar" ]; then wheels "$here"/vllm-b/*.whl; fi
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
more=()
if [ -f "$own" ]; then more=(--library "$own"); fi
calibrate() { python3 -m servesim calibrate "$@" --device cuda --library "$library" "${more[@]}"; }
finish() { # whatever came before: a page, and everything as one file
    if [ -d "$out/tables" ]; then python3 -m servesim calibrate report "$out/tables" -o "$out/tables.html" || true; fi
    tar -C "$out" --exclude=result.tar.gz -czf "$out/result.tar.gz" .
}
trap finish EXIT
# Several tries: an error of the GPU ends a process, the next one goes on without the point that caused it.
measure() { # measure UNTIL COMMAND...: until UNTIL percent of the budget is spent
    local until=$1 left
    shift
    for _ in 1 2 3; do
        left=$((budget * until / 100 - SECONDS))
        if [ "$left" -lt 15 ]; then return; fi
        if calibrate "$@" --budget-s "$left"; then return; fi
        if [ ! -f "$out/tables/profile.json" ]; then exit 2; fi
    done
    echo "run.sh: gave up on: $*" >&2
}

case ${2:-profile} in
smoke) calibrate profile --model qwen3-0.6b --budget-s 60 --max-tokens 512 --max-context 2048 --max-batch 32 --out "$out/smoke" ;;
profile)
    measure 80 profile --model llama-3.1-8b,qwen3-14b,llama-2-13b,llama-3.2-1b,qwen3-0.6b --out "$out/tables"
    measure 98 profile --model llama-3.1-8b --dtype fp8 --out "$out/tables"
    ;;
profile-70b) measure 98 profile --model llama-3.1-70b --tp 8,4,2,1 --out "$out/tables" ;;
steps)
    measure 80 steps --model llama-3.1-8b,qwen3-14b,llama-2-13b,qwen3-0.6b --kernel-tables "$out/tables" --out "$out/steps"
    measure 98 steps --model llama-3.1-8b --dtype fp8 --kernel-tables "$out/tables" --out "$out/steps"
    ;;
engine) # RATES: requests/s, one run each
    for rate in ${RATES:-2 6 10 14}; do
        log=$out/engine/azure-conv-$rate
        python3 -m servesim calibrate engine --engine vllm --model llama-3.1-8b --trace preset:azure-conv-2023 \
            --requests $((rate * 40)) --rate "$rate" --kernel-tables "$out/tables" --out "$log"
        python3 -m servesim validate "$log" --kernel-tables "$out/tables" --host "$log/host.yaml" | tee "$log/errors.txt"
    done
    ;;
*)
    echo "run.sh: unknown part ${2}" >&2
    exit 2
    ;;
esac
