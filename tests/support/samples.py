"""A sample of each page: what these commands give. `make sample` writes them to reports/samples."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "reports" / "samples"
AZURE = "--trace preset:azure-conv-2023 --requests 400 --model llama-3.1-8b"
SLO = "--slo ttft:500,tpot:50"
TOY = "--trace synth:rate=60,prompt=lognormal(p50=80,p95=200),output=lognormal(p50=60,p95=200) --requests 24"
COMMANDS = {
    "run": "run reports/sample.yaml --out DIR",
    "compare": f"compare {AZURE} --gpu h200 --rate 8 --scheduler vllm,sarathi --replicates 3 {SLO} --out DIR",
    "sweep": f"sweep {AZURE} --gpu h100,h200 --rate 4,8,16 {SLO} --out DIR",
    "capacity": f"capacity {AZURE} --gpu h100,l40s {SLO} --replicates 2 --out DIR",
    "size": "size llama-3.1-8b qwen3-14b --gpu l40s,h100,h200 --out DIR/report.html",
    "policies": "policies --out DIR/report.html",
    "play": f"play {TOY} --shape share:tokens=96,groups=3 --model llama-3.2-1b --gpu h100 "
    "--kv contiguous,paged,prefix-hash --engine.num-gpu-blocks 97 --engine.max-model-len 512 --out DIR/report.html",
    "lecture": "lecture --out DIR",
}
"""Arguments of servesim by page; DIR is a directory."""


def made(name: str, folder: Path) -> str:
    """Return a page as its command writes it now."""
    folder.mkdir(parents=True, exist_ok=True)
    servesim = str(Path(sys.executable).with_name("servesim"))
    arguments = [word.replace("DIR", str(folder)) for word in shlex.split(COMMANDS[name])]
    done = subprocess.run([servesim, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = "lecture.html" if name == "lecture" else "report.html"
    return (folder / page).read_text(encoding="utf-8")


if __name__ == "__main__":
    SAMPLES.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch:
        for each in COMMANDS:
            (SAMPLES / f"{each}.html").write_text(made(each, Path(scratch) / each), encoding="utf-8")
