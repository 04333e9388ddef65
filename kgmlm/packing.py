"""The encoder of the BERT family over several batches at once, and no further than is read.

Batches of different lengths go through each linear layer as the rows of one matrix, so that many small
batches of like lengths, which need little padding, cost no more than one large one. Attention stays within
its batch. In the last layer only the positions that are read have queries, and only they go on to the
feed-forward. The numbers are those of the family's own forward pass, but for the order of sums.

Families whose layers are built differently are encoded by their own code (:mod:`kgmlm.modeling`).

Shapes: B texts, T tokens, S positions read per text, H heads of width K, D width of the model, R tokens of
all batches together, P positions read in all batches together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn

FAMILIES = ("bert", "camembert", "electra", "roberta", "xlm-roberta")


@dataclass(frozen=True)
class Reading:
    """A batch of texts and the positions whose states are read.

    Attributes:
        rows, columns: positions, of any one shape.
        each: ``rows`` is ``(B, S)`` and its row b is b: the same number of positions in each text.
    """

    input_ids_BT: torch.Tensor
    attention_mask_BT: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    each: bool

    @property
    def at(self) -> torch.Tensor:
        """The positions among the ``B * T`` rows of the batch, flat."""
        return (self.rows * self.input_ids_BT.shape[1] + self.columns).flatten()

    @property
    def mask(self) -> torch.Tensor | None:
        """What attention may look at, ``(B, 1, 1, T)``; None where that is everything."""
        if not self.attention_mask_BT.is_cuda and bool(self.attention_mask_BT.all()):
            return None
        return self.attention_mask_BT.bool()[:, None, None, :]


class PackedEncoder:
    """Encodes several batches of texts by the layers of a model of the BERT family.

    Args:
        base: such as ``BertModel``.

    Attributes:
        plain: compute attention by matrix products, which bf16 units do fast, instead of fused.
    """

    def __init__(self, base: Any) -> None:
        self.base = base
        self.plain = False

    @staticmethod
    def of(base: Any) -> PackedEncoder | None:
        """The encoder of a model of one of the :data:`FAMILIES`; None of any other."""
        config = base.config
        usual = (
            config.model_type in FAMILIES
            and config.num_hidden_layers > 0
            and not getattr(config, "is_decoder", False)
            and not getattr(config, "add_cross_attention", False)
            and getattr(config, "position_embedding_type", "absolute") == "absolute"
        )
        return PackedEncoder(base) if usual else None

    def __call__(self, readings: Sequence[Reading]) -> torch.Tensor:
        """Last hidden states ``(P, D)`` at the positions of all readings, one reading after the other."""
        states_RD = torch.cat(
            [self.base.embeddings(input_ids=r.input_ids_BT).flatten(0, 1) for r in readings]
        )
        if (projection := getattr(self.base, "embeddings_project", None)) is not None:
            states_RD = projection(states_RD)
        masks = [r.mask for r in readings]
        *layers, last = self.base.encoder.layer
        for layer in layers:
            mixed_RD = self._mixed(layer.attention.self, states_RD, states_RD, readings, masks)
            states_RD = self._forward(layer, mixed_RD, states_RD)
        starts = accumulate((r.input_ids_BT.numel() for r in readings), initial=0)
        at_P = torch.cat([r.at + start for r, start in zip(readings, starts, strict=False)])
        read_PD = states_RD[at_P]
        if all(r.each for r in readings):
            mixed_PD = self._mixed(last.attention.self, read_PD, states_RD, readings, masks)
        else:
            mixed_PD = self._mixed(last.attention.self, states_RD, states_RD, readings, masks)[at_P]
        return self._forward(last, mixed_PD, read_PD)

    @staticmethod
    def _forward(layer: Any, mixed: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """The rest of a layer behind its attention, row by row."""
        attended = layer.attention.output(mixed, states)
        forwarded: torch.Tensor = layer.output(layer.intermediate(attended), attended)
        return forwarded

    def _mixed(
        self,
        attention: Any,
        asking: torch.Tensor,
        states_RD: torch.Tensor,
        readings: Sequence[Reading],
        masks: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:
        """Attention of some rows, equally many of each text, to the states of their texts."""
        sizes = [r.input_ids_BT.numel() for r in readings]
        counts = sizes if asking is states_RD else [r.rows.numel() for r in readings]
        query, key, value = attention.query(asking), attention.key(states_RD), attention.value(states_RD)
        parts = zip(query.split(counts), key.split(sizes), value.split(sizes), strict=True)
        return torch.cat(
            [
                self._attend(attention, len(reading.input_ids_BT), *part, mask)
                for reading, part, mask in zip(readings, parts, masks, strict=True)
            ]
        )

    def _attend(
        self,
        attention: Any,
        texts: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attention within one batch of so many texts: rows of queries in, as many rows out."""
        shape = (texts, -1, attention.num_attention_heads, attention.attention_head_size)
        query_BHSK, key_BHTK, value_BHTK = (x.view(shape).transpose(1, 2) for x in (query, key, value))
        drop = attention.dropout.p if attention.training else 0.0
        if self.plain:
            scores = query_BHSK @ key_BHTK.transpose(2, 3) * attention.attention_head_size**-0.5
            if mask is not None:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            shares = nn.functional.dropout(scores.softmax(-1, torch.float32).to(value.dtype), drop)
            mixed = shares @ value_BHTK
        else:
            mixed = nn.functional.scaled_dot_product_attention(
                query_BHSK, key_BHTK, value_BHTK, attn_mask=mask, dropout_p=drop
            )
        return mixed.transpose(1, 2).reshape(len(query), -1)
