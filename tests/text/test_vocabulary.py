from __future__ import annotations

from kgmlm.core.config import TextSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.text.tokenization import scratch_texts


def test_a_scratch_tokenizer_reads_training_text_only(toy: KnowledgeGraph) -> None:
    text = " ".join(scratch_texts(toy, TextSettings()))
    assert "Portuguese" in text
    assert "inverse of borders" in text
    for unseen in ("Sweden", "Stockholm", "Namibia", "fourteen"):
        assert unseen not in text
