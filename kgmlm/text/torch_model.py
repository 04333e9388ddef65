"""A masked LM by torch: loaded, created and saved; its head applied at the span positions only.

Family-agnostic: the encoder's output is narrowed to the span before the model's own head sees it, and the
head's transformed states are taken where they enter the decoder. So whatever head a family has, its own code
runs.

Encoders of the BERT family read several batches at once (:class:`PackedEncoder`): batches of different
lengths go through each linear layer as the rows of one matrix, so that many small batches of like lengths,
which need little padding, cost no more than one large one. Attention stays within its batch. In the last
layer only the positions that are read have queries, and only they go on to the feed-forward. The numbers are
those of the family's own forward pass, but for the order of sums.

Shapes: B texts, T tokens, L span, S positions read per text, H heads of width K, D width of the decoder's
input, V vocabulary, R tokens of all batches together, P positions read in all batches together.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad
from transformers.modeling_outputs import BaseModelOutput

from kgmlm.core.arrays import Floats, HostTable, IntArray, Table
from kgmlm.core.errors import ModelError, first_line
from kgmlm.text.reader import PairTable, States, TextModel, log_probabilities
from kgmlm.text.tokenization import MaskedBatch, check_model_folder, model_named, reason

if TYPE_CHECKING:
    from kgmlm.core.config import ScratchSettings

FAMILIES = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
FROM_PADDING = ("camembert", "roberta", "xlm-roberta")  # their positions start after the padding's


@dataclass(frozen=True)
class SpanOutput:
    """States that enter the decoder, float32, with gradients where these are enabled.

    Attributes:
        hidden_BLD: at the span positions.
        vector_BD: at the mask behind the span, of length 1; None where there is no such mask.
        entities_ED: the vectors of the entities that were read beside the queries, if any were.
    """

    hidden_BLD: torch.Tensor
    vector_BD: torch.Tensor | None = None
    entities_ED: torch.Tensor | None = None


@dataclass(frozen=True)
class SpanBatch:
    """A batch of texts and the positions whose states are read.

    Attributes:
        rows, columns: positions ``(B, S)``, as many in each text; row b of ``rows`` is b.
    """

    input_ids_BT: torch.Tensor
    attention_mask_BT: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor

    @property
    def at(self) -> torch.Tensor:
        """The positions among the ``B * T`` rows of the batch, flat."""
        return (self.rows * self.input_ids_BT.shape[1] + self.columns).flatten()

    @property
    def mask(self) -> torch.Tensor | None:
        """The mask of attention, ``(B, 1, 1, T)``; None where no text is padded."""
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

    def __call__(self, readings: Sequence[SpanBatch]) -> torch.Tensor:
        """Last hidden states ``(P, D)`` at the positions of all readings, one reading after the other."""
        states_RD = self._embedded(readings)
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
        mixed_PD = self._mixed(last.attention.self, read_PD, states_RD, readings, masks)
        return self._forward(last, mixed_PD, read_PD)

    def _embedded(self, readings: Sequence[SpanBatch]) -> torch.Tensor:
        """Embeddings ``(R, D)`` of the tokens of all batches, looked up at once: the gradient of each look-up
        is as large as the vocabulary.
        """
        batches = [r.input_ids_BT for r in readings]
        longest = max(ids_BT.shape[1] for ids_BT in batches)
        padding = self.base.config.pad_token_id or 0  # by which some families count positions
        padded = [pad(ids_BT, (0, longest - ids_BT.shape[1]), value=padding) for ids_BT in batches]
        states_BTD: torch.Tensor = self.base.embeddings(input_ids=torch.cat(padded))
        if len(batches) == 1:
            return states_BTD.flatten(0, 1)
        masks = [torch.ones_like(ids_BT, dtype=torch.bool) for ids_BT in batches]
        there_BT = torch.cat([pad(x, (0, longest - x.shape[1])) for x in masks])
        return states_BTD.flatten(0, 1).index_select(0, there_BT.flatten().nonzero()[:, 0])

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
        readings: Sequence[SpanBatch],
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


_LAYERS = 1000  # that a model has at most
_LOADING = threading.RLock()  # transformers creates weights under process-wide settings
_ENTERING = threading.RLock()  # a model holds the positions to read during a forward pass
_LOGITS = 2**26  # logits held at once: 256 MB


@contextmanager
def reduced_products(enabled: bool = True) -> Iterator[None]:
    """Multiply float32 matrices in bf16 with float32 sums, where the hardware has units for it.

    For what autocast would round to bf16 but has to stay float32: logits.
    """
    before = torch.get_float32_matmul_precision()
    if enabled:
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def bf16_fault(model: nn.Module) -> str:
    """The error of a model's first step in bf16, forward and backward; empty where there is none.

    Some families have constants or operations that bf16 has not (DeBERTa's first one among them). Neither
    weights nor random numbers change.
    """
    device = next(model.parameters()).device
    ids = torch.arange(4, device=device)[None]
    try:
        with torch.random.fork_rng(), torch.enable_grad(), torch.autocast(device.type, torch.bfloat16):
            first = model(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
            if first.requires_grad:
                first.float().sum().backward()
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return first_line(error)
    finally:
        model.zero_grad(set_to_none=True)
    return ""


class SpanModel(nn.Module):
    """A masked LM that answers at the span only.

    Args:
        mlm: any Hugging Face ``...ForMaskedLM`` whose last layer is linear.

    Raises:
        ModelError: when the model has no linear decoder over its vocabulary.
    """

    def __init__(self, mlm: Any) -> None:
        super().__init__()
        self.mlm = mlm
        decoder = mlm.get_output_embeddings()
        weight = getattr(decoder, "weight", None)
        if weight is None or weight.ndim != 2 or weight.shape[0] != mlm.config.vocab_size:
            raise ModelError(f"{type(mlm).__name__} has no linear decoder over its vocabulary")
        self._span: tuple[torch.Tensor, torch.Tensor] | None = None
        self._captured: torch.Tensor | None = None
        self._reduced = False
        self._packed = PackedEncoder.of(mlm.base_model)
        mlm.base_model.register_forward_hook(self._narrow)
        decoder.register_forward_pre_hook(self._capture)

    def _narrow(self, module: nn.Module, args: Any, output: Any) -> Any:
        if self._span is None:
            return output
        rows, columns = self._span
        narrowed = output[0][rows, columns]
        if isinstance(output, tuple):
            return (narrowed, *output[1:])
        output["last_hidden_state"] = narrowed
        return output

    def _capture(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> Any:
        if self._span is None:
            return None
        self._captured = args[0]
        return (args[0][:, :0],)  # nothing to decode here: scoring does it, for the tokens that it needs

    @property
    def packs(self) -> bool:
        """Whether several batches are encoded at the cost of one of as many tokens."""
        return self._packed is not None

    @property
    def positions(self) -> int | None:
        """How many tokens a text may have; None where the model sets no limit."""
        limit: int | None = getattr(self.mlm.config, "max_position_embeddings", None)
        embeddings = getattr(self.mlm.base_model, "embeddings", None)
        # The RoBERTa family counts positions from behind the padding's.
        padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
        return limit if limit is None or padding is None else limit - padding - 1

    @property
    def tokens(self) -> int:
        """How many tokens it can read."""
        count: int = self.mlm.get_input_embeddings().num_embeddings
        return count

    def forward(
        self,
        batch: MaskedBatch,
        entities: Sequence[MaskedBatch] = (),
    ) -> SpanOutput:
        """Encode a batch; one pass per query.

        Args:
            batch: queries.
            entities: texts of E entities, in several batches; each has a mask for its vector and no span.
        """
        states = self._at([positions_of(part, self.device) for part in (batch, *entities)])
        vectors = [
            nn.functional.normalize(hidden[:, -1], dim=-1) if part.vector else None
            for part, hidden in zip((batch, *entities), states, strict=True)
        ]
        hidden = states[0][:, :-1] if batch.vector else states[0]
        of_entities = [v for v in vectors[1:] if v is not None]
        return SpanOutput(hidden, vectors[0], torch.cat(of_entities) if of_entities else None)

    def _at(self, readings: Sequence[SpanBatch]) -> list[torch.Tensor]:
        """The states that enter the decoder at the positions of each reading, float32."""
        reduced = torch.autocast(self.device.type, torch.bfloat16) if self._reduced else nullcontext()
        with _ENTERING, reduced:
            if self._packed is None:
                return [
                    self._enter(r.input_ids_BT, (r.rows, r.columns), attention_mask=r.attention_mask_BT)
                    for r in readings
                ]
            states_PD = self._packed(readings)
            entering_PD = self.through_head(states_PD[None])[0]
            entering = entering_PD.split([r.rows.numel() for r in readings])
        return [e.view(*r.rows.shape, -1) for e, r in zip(entering, readings, strict=True)]

    def through_head(self, states_BSD: torch.Tensor) -> torch.Tensor:
        """Encoder states through the family's own head: what enters the decoder, ``(B, S, D)``, float32."""
        base, everything = self.mlm.base_model, (slice(None), slice(None))
        base.forward = lambda *args, **kwargs: BaseModelOutput(last_hidden_state=states_BSD)
        try:
            unread_BS = torch.zeros(states_BSD.shape[:2], dtype=torch.long, device=self.device)
            return self._enter(unread_BS, everything)
        finally:
            del base.forward  # the class's own again

    def _enter(self, input_ids_BT: torch.Tensor, span: Any, **more: torch.Tensor) -> torch.Tensor:
        """The states that enter the decoder at a span of the encoder's output, float32."""
        self._span = span
        try:
            self.mlm(input_ids=input_ids_BT, **more)
            hidden = self._captured
        finally:
            self._span = self._captured = None
        if hidden is None:
            raise ModelError(f"{type(self.mlm).__name__} does not pass through its output embeddings")
        return hidden.float()

    @property
    def decoder(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Decoder weight (V, D) and bias (V,); a missing bias is zero."""
        layer = self.mlm.get_output_embeddings()
        bias = layer.bias if layer.bias is not None else layer.weight.new_zeros(layer.weight.shape[0])
        return layer.weight, bias

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.mlm.device
        return device

    @property
    def gpu(self) -> str | None:
        """The GPU that it computes on, such as "cuda:0"; None on a CPU."""
        return None if self.device.type == "cpu" else str(self.device)

    @property
    def width(self) -> int:
        """Return D."""
        return int(self.decoder[0].shape[1])

    def states(self, batch: MaskedBatch) -> States:
        """See :class:`~kgmlm.text.reader.TextModel`."""
        if self.training:
            self.eval()
        with torch.inference_mode():
            span = self(batch)
        vector_BD = None if span.vector_BD is None else span.vector_BD.cpu().numpy()
        return States(span.hidden_BLD.cpu().numpy(), vector_BD)

    def log_probabilities(
        self, states: States, pairs: PairTable, softmax_tokens: IntArray | None = None
    ) -> Floats:
        """See :class:`~kgmlm.text.reader.TextModel`."""
        weight_VD, bias_V = (x.detach().float() for x in self.decoder)
        if self.gpu is None:
            return log_probabilities((weight_VD.numpy(), bias_V.numpy()), states, pairs, softmax_tokens)
        return log_probabilities_by_torch((weight_VD, bias_V), states, pairs, softmax_tokens)

    def table(self, rows_ND: Floats) -> Table:
        """See :class:`~kgmlm.text.reader.TextModel`."""
        if self.gpu is None:
            return HostTable(rows_ND)
        return DeviceTable(torch.from_numpy(np.ascontiguousarray(rows_ND)).to(self.device))

    def log_normalizer(self, rows_RD: torch.Tensor, tokens: torch.Tensor | None = None) -> torch.Tensor:
        """The log of the summed exponentials of the logits of R states ``(R,)``, differentiable.

        Args:
            tokens: what the sum is over; None is the whole vocabulary.
        """
        weight_VD, bias_V = self.decoder
        if tokens is not None:
            weight_VD, bias_V = weight_VD[tokens], bias_V[tokens]
        step = max(1, _LOGITS // len(weight_VD))
        parts = [
            logits(part, weight_VD.float(), bias_V.float()).logsumexp(-1) for part in rows_RD.split(step)
        ]
        return torch.cat(parts)

    def attend(self, implementation: str) -> None:
        """Compute attention by another of the library's implementations, where the family has it."""
        if self._packed is not None:
            self._packed.plain = implementation == "eager"
        try:
            self.mlm.set_attn_implementation(implementation)
        except (ValueError, ImportError, NotImplementedError):
            return

    def reduce(self, enabled: bool = True) -> None:
        """Encode in bf16 even outside a training loop; states and scores stay float32.

        Raises:
            ModelError: when the model's family cannot.
        """
        if enabled and (why := bf16_fault(self.mlm)):
            raise ModelError(f"this model cannot compute in bf16 ({why}); --precision fp32 can")
        self._reduced = enabled

    def set_dropout(self, p: float) -> None:
        """Give every dropout of the model this probability; while it is in memory, not in its config."""
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = p
            for name, value in vars(module).items():  # families that keep a number and call the function
                if "dropout" in name and isinstance(value, float):
                    setattr(module, name, p)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors) and config as an ordinary Hugging Face folder."""
        self.mlm.save_pretrained(folder)


def positions_of(batch: MaskedBatch, device: torch.device) -> SpanBatch:
    """The positions that are read of a batch: its hole and the mask behind it."""
    ids_BT, mask_BT, start_B = (
        torch.from_numpy(x).to(device)
        for x in (batch.input_ids_BT, batch.attention_mask_BT, batch.span_start_B)
    )
    columns = start_B[:, None] + torch.arange(batch.span_length + batch.vector, device=device)
    rows = torch.arange(len(columns), device=device)[:, None].expand_as(columns)
    return SpanBatch(ids_BT, mask_BT, rows, columns)


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """Rows on a GPU; see :class:`~kgmlm.core.arrays.Table`."""

    rows_ND: torch.Tensor

    @torch.inference_mode()
    def products(self, queries_BD: Floats) -> Floats:
        """See :class:`~kgmlm.core.arrays.Table`."""
        query_BD = torch.from_numpy(np.ascontiguousarray(queries_BD)).to(self.rows_ND.device)
        scores_BN: Floats = (query_BD @ self.rows_ND.T).cpu().numpy()
        return scores_BN


@torch.inference_mode()
def log_probabilities_by_torch(
    decoder: tuple[torch.Tensor, torch.Tensor],
    states: States,
    pairs: PairTable,
    softmax_tokens: IntArray | None,
) -> Floats:
    """:func:`kgmlm.text.reader.log_probabilities` where the decoder's weights are, such as on a GPU."""
    weight_VD, bias_V = decoder
    device, length = weight_VD.device, states.hidden_BLD.shape[1]
    tokens_P = torch.from_numpy(pairs.tokens_P).to(device)
    among = None if softmax_tokens is None else torch.from_numpy(softmax_tokens).to(device)
    position_P = torch.from_numpy(np.repeat(np.arange(len(pairs.starts) - 1), np.diff(pairs.starts)))
    at_P = position_P.to(device) * len(weight_VD) + tokens_P
    step = max(1, _LOGITS // max(1, length * len(weight_VD)))
    parts = [np.zeros((0, len(pairs.tokens_P)), np.float32)]
    for start in range(0, len(states.hidden_BLD), step):
        hidden_bLD = torch.from_numpy(states.hidden_BLD[start : start + step]).to(device)
        logits_bLV = logits(hidden_bLD.flatten(0, 1), weight_VD, bias_V).unflatten(0, (-1, length))
        log_z_bL = (logits_bLV if among is None else logits_bLV[..., among]).logsumexp(2)
        log_probs_bP = logits_bLV.flatten(1)[:, at_P] - log_z_bL[:, position_P.to(device)]
        parts.append(log_probs_bP.cpu().numpy())
    return np.concatenate(parts)


def logits(rows_RD: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor) -> torch.Tensor:
    """Logits ``(R, V)`` of R states; for the few of a query, putting the weights first in the product takes a
    fifth of the time on CPUs.
    """
    return torch.addmm(bias_V[:, None], weight_VD, rows_RD.T).T


class Residuals(nn.Module):
    """Learned additions to the vectors that are read from entities' texts; 0 for entities never seen.

    Shapes: E entities of N.
    """

    def __init__(self, entities: int, width: int) -> None:
        super().__init__()
        self.residual_ND = nn.Parameter(torch.zeros(entities, width))

    def forward(self, entity_ids: torch.Tensor, read_ED: torch.Tensor) -> torch.Tensor:
        """Unit vectors ``(E, D)``."""
        return nn.functional.normalize(read_ED + self.residual_ND[entity_ids], dim=-1)

    @torch.inference_mode()
    def added(self, entity_ids: IntArray, read_ED: Floats) -> Floats:
        """The same without gradients."""
        ids, read = (torch.from_numpy(x).to(self.residual_ND.device) for x in (entity_ids, read_ED))
        vectors_ED: Floats = self(ids, read).cpu().numpy()
        return vectors_ED


def span_model(model: TextModel) -> SpanModel:
    """The text model as a torch model, the only kind that can be trained."""
    assert isinstance(model, SpanModel), "this needs the model by torch"
    return model


def load_model(path: str | Path, seed: int = 0) -> SpanModel:
    """A pretrained masked LM by hub name or folder.

    Weights that the checkpoint lacks in the MLM head (sentence encoders come without one) start near the
    identity, seeded; weights missing elsewhere are refused.

    Raises:
        ModelError: when it cannot be loaded or is no masked LM.
    """
    with _LOADING:
        return _loaded(path, seed)


def _loaded(path: str | Path, seed: int) -> SpanModel:
    from transformers import AutoConfig, AutoModelForMaskedLM

    if not isinstance(path, str | Path):
        raise ModelError(f"a model is a name of the hub or a folder, not {type(path).__name__}")
    path = model_named(path)
    check_model_folder(path)
    torch.manual_seed(seed)
    try:
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=False)
        if (layers := getattr(config, "num_hidden_layers", 0)) > _LAYERS:  # made before any is found missing
            raise ValueError(f"its config.json asks for {layers:,} layers")
        mlm, info = AutoModelForMaskedLM.from_pretrained(
            str(path), config=config, output_loading_info=True, dtype=torch.float32, trust_remote_code=False
        )
    except Exception as error:  # whatever a broken folder makes the libraries raise
        raise ModelError(f"no masked language model can be loaded from '{path}': {reason(error)}") from None
    missing = set(info["missing_keys"])
    encoder = [k for k in missing if k.startswith(f"{mlm.base_model_prefix}.")]
    if encoder:
        raise ModelError(f"'{path}' lacks weights of the encoder itself, such as {encoder[0]}")
    # Without these layers, the encoder would be another model than the one given.
    if further := [k for k in info["unexpected_keys"] if re.search(r"(^|\.)layers?\.\d+\.", k)]:
        raise ModelError(f"'{path}' has more layers than its config.json says, such as {further[0]}")
    start_head(mlm, missing)
    # Tensors of a file may be unaligned, and alignment affects rounding: with copies, runs resume exactly.
    for tensor in (*mlm.parameters(), *mlm.buffers()):
        tensor.data = tensor.data.clone()
    return SpanModel(mlm)


def start_head(mlm: Any, missing: set[str]) -> None:
    """Start new head weights near the identity: eye plus small noise, ones for norms, zero biases."""
    with torch.no_grad():
        for name, parameter in mlm.named_parameters():
            if name not in missing:
                continue
            if parameter.ndim == 2 and parameter.shape[0] == parameter.shape[1]:
                parameter.copy_(torch.eye(len(parameter)) + 0.002 * torch.randn_like(parameter))
            elif parameter.ndim == 2:
                parameter.normal_(0, 0.02)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)


def create_model(
    vocabulary: int, pad_id: int, shape: ScratchSettings, max_length: int, seed: int
) -> SpanModel:
    """A small random BERT for training from scratch.

    Args:
        max_length: of its texts in tokens.
    """
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(seed)
    if shape.hidden_size % shape.heads:
        raise ModelError(
            f"scratch.hidden_size {shape.hidden_size} is not a multiple of scratch.heads {shape.heads}"
        )
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden_size,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
        max_position_embeddings=max(max_length, 64),
        pad_token_id=pad_id,
        type_vocab_size=1,
        initializer_range=shape.hidden_size**-0.5,  # unit-length embeddings: small models start faster
    )
    mlm = BertForMaskedLM(config)
    return SpanModel(mlm)
