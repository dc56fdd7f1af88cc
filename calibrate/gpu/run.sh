#!/usr/bin/env bash
# Runs `servesim calibrate` from what bundle.sh made, on a machine with a GPU and no network:
#
#   bash run.sh all --model llama-3.1-8b --out h200
#   bash run.sh profile --model llama-3.1-70b --tp 8,4,2,1 --out h200-70b
#
# for all, profile and steps. Cut off, the same line goes on where it was.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
site=${SITE:-/tmp/servesim-site}
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
exec python3 -m servesim calibrate "${@:?usage: run.sh all|profile|steps OPTIONS}" --device cuda --library "$library" "${more[@]}"
