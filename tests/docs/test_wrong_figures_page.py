"""docs/wrong-figures.md is what the recorded verdicts say, and names what the texts get wrong."""

from __future__ import annotations

from tests.support.wrong_figures_page import PAGE, page_of


def test_the_page_is_made_of_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_of(), "`make docs` makes it"


def test_the_kv_tables_and_the_softmax_are_among_the_wrong_figures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for row in (
        "| 70B, 8 KV heads, 64 x 32,768 tokens | 172 GB | 687 GB |",
        "| Llama-3-8B, 131,072 tokens | 320 GB | 17.2 GB |",
        "| MHA to MLA | 14 x | 28.4 x |",
        "| teacher, dog to car, softmax at 4 | 2 x | 1.28 x |",
    ):
        assert row in text
