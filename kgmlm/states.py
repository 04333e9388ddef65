"""What a text model says, and what a reader asks of one.

Shapes: B queries, L span, D width of the decoder's input, V vocabulary, E entities.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kgmlm.arrays import Array, Device

if TYPE_CHECKING:
    from kgmlm.tokenization import MaskedBatch


@dataclass(frozen=True)
class SpanOutput:
    """States that enter the decoder, float32.

    Attributes:
        hidden_BLD: at the span positions.
        vector_BD: at the mask behind the span, of length 1; None where there is no such mask.
        entities_ED: the vectors of the entities that were read beside the queries, if any were.
    """

    hidden_BLD: Array
    vector_BD: Array | None = None
    entities_ED: Array | None = None


class TextModel(Protocol):
    """A masked LM that answers at the span only, whatever computes it."""

    @property
    def device(self) -> Device:
        """Where its arrays are; None for NumPy's."""

    @property
    def positions(self) -> int | None:
        """How many tokens a text may have; None where the model sets no limit."""

    @property
    def tokens(self) -> int:
        """How many tokens it can read."""

    @property
    def decoder(self) -> tuple[Array, Array]:
        """Decoder weight (V, D) and bias (V,)."""

    def __call__(self, batch: MaskedBatch) -> SpanOutput:
        """The states of a batch."""

    def eval(self) -> Any:
        """Switch off what only training does."""

    def inference(self) -> AbstractContextManager[Any]:
        """In it nothing is kept for gradients."""

    def log_normalizer(self, span: SpanOutput, tokens: Array | None = None) -> Array:
        """``log Z_BL`` over the vocabulary, or over ``tokens`` only."""

    def reduce(self, enabled: bool = True) -> None:
        """Encode in bf16, where that is possible."""
