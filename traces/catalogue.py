"""Public traces: their URL, license, and the checksum that identifies the published file.

Checksums were computed from the file unless a note names another source. A checksum that contains "..." is known only
in part.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from servesim.errors import UserError, suggest
from servesim.limits import SETTING, limits

GITHUB = "https://raw.githubusercontent.com"
AZURE = "Patel et al., Splitwise, ISCA 2024"
MOONCAKE = "Qin et al., Mooncake, FAST 2025"
BURSTGPT = "Wang et al., BurstGPT, 2024"
CHUNK = 1 << 20
_RAISE = f" (to allow more, set {SETTING}=fetch=N)"


@dataclass(frozen=True)
class Entry:
    """One public trace file."""

    name: str
    about: str
    url: str
    licence: str
    citation: str
    sha256: str
    size: int | None = None
    """Size in bytes, or None if not known."""
    note: str = ""

    @property
    def file(self) -> str:
        """File name at the source."""
        return self.url.rsplit("/", 1)[-1]

    def matches(self, digest: str) -> bool:
        """Return whether a file's checksum matches the known part of this trace's checksum."""
        start, _, end = self.sha256.partition("...")
        return digest.startswith(start) and digest.endswith(end)


_ENTRIES = (
    Entry(
        "azure-conv-2023",
        "an hour of chats, 19,366 requests",
        f"{GITHUB}/Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_conv.csv",
        "CC-BY-4.0",
        AZURE,
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        719_188,
    ),
    Entry(
        "azure-code-2023",
        "an hour of code completion, 8,819 requests",
        f"{GITHUB}/Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_code.csv",
        "CC-BY-4.0",
        AZURE,
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        320_117,
    ),
    Entry(
        "mooncake-conversation",
        "an hour of long chats with their shared prefixes, 12,031 requests",
        f"{GITHUB}/kvcache-ai/Mooncake/main/FAST25-release/traces/conversation_trace.jsonl",
        "Apache-2.0",
        MOONCAKE,
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        3_029_533,
    ),
    Entry(
        "mooncake-toolagent",
        "an hour of tool and agent requests with their shared prefixes, 23,608 requests",
        f"{GITHUB}/kvcache-ai/Mooncake/main/FAST25-release/traces/toolagent_trace.jsonl",
        "Apache-2.0",
        MOONCAKE,
        "48a2db1a13d3bc05e6330140c64f604ba366df20d3c9e128b5c35a01c1fa5f71",
        note="checksum taken from a third party's manifest",
    ),
    Entry(
        "vidur-splitwise-conv",
        "azure-conv-2023 in Vidur's columns",
        f"{GITHUB}/microsoft/vidur/main/data/processed_traces/splitwise_conv.csv",
        "MIT (the data: CC-BY-4.0)",
        AZURE,
        "439e4138b7e384f316de614c071f7162be05b8af0cef866f82faacd1b0472249",
        382_729,
    ),
    Entry(
        "vidur-splitwise-code",
        "azure-code-2023 in Vidur's columns",
        f"{GITHUB}/microsoft/vidur/main/data/processed_traces/splitwise_code.csv",
        "MIT (the data: CC-BY-4.0)",
        AZURE,
        "f266b907d109d471c61283ab69771c17ad79a18b33ff6e96aa546346f52767a6",
        166_195,
    ),
    Entry(
        "arxiv-summarization",
        "28,257 lengths of papers and summaries, no times",
        f"{GITHUB}/microsoft/vidur/main/data/processed_traces/"
        "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        "MIT",
        "Agrawal et al., Vidur, MLSys 2024",
        "9d3580538d915ca75e4aaaa54590b42dbb17abc6d74c8913310cf07c232adcdc",
        884_932,
    ),
    Entry(
        "burstgpt-1",
        "two months of ChatGPT and GPT-4 use, 1.43 million requests",
        "https://github.com/HPMLL/BurstGPT/releases/download/v1.2/BurstGPT_1.csv",
        "CC-BY-4.0",
        BURSTGPT,
        "4bb37836...e12122",
        52_283_111,
        "only part of the checksum is known",
    ),
    Entry(
        "burstgpt-2",
        "the following two months, 3.86 million requests",
        "https://github.com/HPMLL/BurstGPT/releases/download/v1.2/BurstGPT_2.csv",
        "CC-BY-4.0",
        BURSTGPT,
        "44bf5942...928bf7",
        144_819_209,
        "only part of the checksum is known",
    ),
    Entry(
        "bailian-coder",
        "two hours of coding assistance with shared prefixes (blocks of 16)",
        "https://media.githubusercontent.com/media/alibaba-edu/qwen-bailian-usagetraces-anon/main/"
        "qwen_coder_blksz_16.jsonl",
        "Apache-2.0",
        "Wang et al., KVCache in the wild, ATC 2025",
        "3d74974c...1aff",
        132_054_902,
        "only part of the checksum is known",
    ),
    Entry(
        "bailian-thinking",
        "two hours of reasoning with shared prefixes (blocks of 16)",
        "https://media.githubusercontent.com/media/alibaba-edu/qwen-bailian-usagetraces-anon/main/"
        "qwen_thinking_blksz_16.jsonl",
        "Apache-2.0",
        "Wang et al., KVCache in the wild, ATC 2025",
        "41ac36d9...e906",
        27_901_454,
        "only part of the checksum is known",
    ),
)


def catalogue() -> dict[str, Entry]:
    """Return all known public traces by name."""
    return {entry.name: entry for entry in _ENTRIES}


def entry_of(name: str) -> Entry:
    """Return a public trace by name; raise UserError with a suggestion if there is no trace of that name."""
    known = catalogue()
    if name not in known:
        raise UserError(f"unknown public trace {name!r}{suggest(name, known)} (see servesim trace list)")
    return known[name]


def fetch(entry: Entry, target: Path, on_bytes: Callable[[int], None] = lambda count: None) -> Path:
    """Download a trace under a temporary name and rename it to `target` once its size and checksum are verified. An
    existing file with the right checksum is left alone."""
    if target.exists():
        if target.is_file() and entry.matches(_digest_of(target)):
            return target
        raise UserError(f"{target}: already exists but is not {entry.name}: its checksum differs")
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    digest, received = hashlib.sha256(), 0
    try:
        with urlopen(entry.url, timeout=60) as response, beside.open("wb") as file:
            most = entry.size if entry.size is not None else limits().fetch
            while block := response.read(CHUNK):
                if received + len(block) > most:
                    told = (
                        f"{most:,} were expected"
                        if entry.size is not None
                        else (f"at most {most:,} are allowed{_RAISE}")
                    )
                    raise UserError(f"{entry.url}: too many bytes received: {told}")
                file.write(block)
                digest.update(block)
                received += len(block)
                on_bytes(received)
        if entry.size is not None and received != entry.size:
            raise UserError(f"{entry.url}: received {received:,} bytes, expected {entry.size:,}")
        if not entry.matches(digest.hexdigest()):
            raise UserError(
                f"{entry.url}: the file has changed: its checksum is {digest.hexdigest()} but must be {entry.sha256}"
            )
        beside.replace(target)
    except HTTPError as error:
        raise UserError(f"{entry.url}: the server returned {error.code} {error.reason}") from error
    except (HTTPException, ValueError) as error:
        raise UserError(f"{entry.url}: the response is not valid HTTP ({type(error).__name__}: {error})") from error
    except (URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"{entry.url}: cannot be reached ({reason}); download the file in another way and use its path as the trace"
        ) from error
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)
    return target


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
