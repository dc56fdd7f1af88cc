"""Prepare the environment of the live tests: `python prepare.py FOLDER`. Takes the benchmark clients out of the wheels
in FOLDER/wheels, which are removed, and trains a tokenizer, so that no client asks a hub for one."""

from __future__ import annotations

import json
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

CLIENTS = ("vllm/benchmarks/", "sglang/benchmark/")
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "


def unpack(folder: Path) -> None:
    """Extract the clients of all wheels."""
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "clients", [name for name in archive.namelist() if name.startswith(CLIENTS)])
        wheel.unlink()


def train(folder: Path) -> None:
    """Train a byte-level BPE of 4,000 pieces on modules of the standard library, and save it as transformers reads it.
    How texts are split does not matter: the server counts tokens its own way."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    texts = sorted(map(str, Path(sysconfig.get_path("stdlib")).glob("*.py")))[:100]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<pad>"]
    made.train(
        texts,
        trainers.BpeTrainer(vocab_size=4000, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "model_max_length": 131072}
    tokens = dict(zip(("bos_token", "eos_token", "pad_token"), special, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(kind | tokens))
    model = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4000}
    (folder / "config.json").write_text(json.dumps(model))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    unpack(place)
    train(place / "tokenizer")
