#!/usr/bin/env bash
# Everything a machine with a GPU and no network needs for `servesim calibrate`, as a folder to carry there.
#
#   bundle.sh DIR          servesim, what it imports, and vLLM's FlashAttention-3 library: about 25 MB
#   bundle.sh DIR --vllm   vLLM 0.26 besides, in DIR/vllm-a (59 MB) and DIR/vllm-b (50 MB), to be carried in two parts
#
# For x86-64 Linux, Python 3.12, torch 2.11 for CUDA 13, transformers 5.17 (what is on the machine is in HAVE).
set -euo pipefail
dir=$(mkdir -p "${1:?usage: bundle.sh DIR [--vllm]}" && cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
target="--only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux2014_x86_64"
for n in $(seq 5 39); do target="$target --platform manylinux_2_${n}_x86_64"; done
locked() { grep -E "^($1)==" "$root/requirements.lock" | sed 's/ *;.*//'; }

"$python" -m pip wheel --quiet --no-deps --wheel-dir "$dir" "$root"
# shellcheck disable=SC2046,SC2086
"$python" -m pip download --quiet --no-deps $target --dest "$dir" \
    $(locked "simpy|pydantic|pydantic-core|annotated-types|typing-inspection|typing-extensions|typer|annotated-doc|shellingham")
# shellcheck disable=SC2086
"$python" -m pip download --quiet --no-deps $target --dest "$scratch" vllm==0.26.0
cp "$here/run.sh" "$dir/"

"$python" - "$scratch" "$dir" "${2:-}" <<'PYTHON'
import glob, io, lzma, shutil, sys, tarfile, zipfile
from pathlib import Path

scratch, target, more = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "--vllm"
LEFT_OUT = ("vllm/vllm-rs", "vllm/third_party/fmha_sm100", "vllm/third_party/deep_gemm")
with zipfile.ZipFile(glob.glob(f"{scratch}/vllm-*.whl")[0]) as wheel:
    def packed(name, path, preset):
        path.parent.mkdir(exist_ok=True)
        with wheel.open(name) as source, lzma.open(path, "wb", preset=preset) as file:
            shutil.copyfileobj(source, file, 1 << 20)

    packed("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", target / "_vllm_fa3_C.abi3.so.xz", 3)
    if more:
        packed("vllm/_C_stable_libtorch.abi3.so", target / "vllm-a" / "_C_stable_libtorch.abi3.so.xz", 6)
        with tarfile.open(target / "vllm-a" / "vllm_py.tar.xz", "w:xz", preset=2) as tar:
            for info in wheel.infolist():
                name = info.filename
                if name.endswith(".so") or name.startswith(LEFT_OUT) or "/include/" in name:
                    continue
                entry = tarfile.TarInfo(name)
                entry.size = info.file_size
                tar.addfile(entry, io.BytesIO(wheel.read(info)))
PYTHON

if [ "${2:-}" = --vllm ]; then
    printf 'vllm==0.26.0\ntorch==2.11.0\ntransformers==5.17.0\n' >"$scratch/wanted.in"
    uv pip compile --quiet --no-header --no-annotate --python-platform x86_64-manylinux_2_39 --python-version 3.12 \
        --only-binary :all: "$scratch/wanted.in" --output-file "$scratch/all.txt"
    # there already, or never imported by the engine
    HAVE="vllm|torch|torchaudio|torchvision|triton|transformers|numpy|nvidia-.*|cuda-.*|tokenizers|safetensors|huggingface-hub|hf-xet|pillow|pyyaml|psutil|filelock|fsspec|jinja2|markupsafe|sympy|mpmath|networkx|packaging|regex|requests|tqdm|typing-extensions|aiohttp|einops|protobuf|ninja|numba|llvmlite|scipy|setuptools|attrs|certifi|idna|urllib3|grpcio|opencv-.*|sentencepiece|tiktoken|cloudpickle|pyparsing|pydantic|pydantic-core|annotated-types|typing-inspection|typer|click|rich|shellingham|anyio|h11|httpcore|httpx"
    HEAVY="tokenspeed.*|nvidia-cutlass.*|tilelang|pynvvideo.*|z3-.*|flashinfer.*|torchcodec|quack.*|sentry.*|supervisor|fastsafetensors|humming.*|rignore|fastar|httptools|nvtx|watchfiles|detect-.*|agent-.*|dnspython|email.*|fastapi-cli|fastapi-cloud.*|rich-toolkit|websockets"
    grep -vE "^($HAVE|$HEAVY)==" "$scratch/all.txt" | sed 's/ *;.*//' >"$scratch/missing.txt"
    # shellcheck disable=SC2086
    "$python" -m pip download --quiet --no-deps $target --dest "$dir/vllm-b" --requirement "$scratch/missing.txt"
fi
du -sh "$dir"/*
