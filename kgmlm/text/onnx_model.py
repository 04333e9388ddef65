"""Text models computed by ONNX Runtime in float32, which opens in a tenth of the time that torch takes.

The file ``encoder.onnx`` is the structure of a masked LM's encoder and its head alone. Its weights are those
of ``model.safetensors`` beside it, given to the runtime when it is opened, so they always match. The
logits of the decoder are made by NumPy (:func:`kgmlm.text.reader.log_probabilities`). The encoder of the
bi-encoder has a structure of its own.

Shapes: B texts, T tokens, L span, S positions read per text, D width, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from kgmlm.core.arrays import Floats, HostTable, IntArray, unit
from kgmlm.core.digests import StrictModel, sha256
from kgmlm.core.errors import ModelError, first_line
from kgmlm.core.machine import installed
from kgmlm.text.reader import PairTable, States, log_probabilities
from kgmlm.text.tokenization import MaskedBatch

ONNX_FILE = "encoder.onnx"
WEIGHTS = "model.safetensors"
KEY = "kgmlm"  # of our entry in the file's metadata, which is its last bytes
_MARK = b'{"kgmlm_structure":'  # what that entry begins with


class Facts(StrictModel):
    """What a structure file says about itself.

    Attributes:
        kgmlm_structure: the version of this.
        config: SHA-256 of the ``config.json`` that it is the structure of.
        weights: the tensors of ``model.safetensors`` that it takes.
        decoder: the tensors of the decoder's weight and, unless it has none, its bias; none of an encoder.
        positions: how many tokens a text may have.
        tokens: how many tokens can be read.
    """

    kgmlm_structure: int = Field(ge=1, le=1)
    config: str
    weights: list[str] = Field(min_length=1)
    decoder: list[str] = Field(max_length=2)
    positions: int | None
    tokens: int


@contextmanager
def _readable_errors(path: Path) -> Iterator[None]:
    """Make errors raised inside name the file, and say what helps."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # the runtime's own have no common base
        why = first_line(error)
        raise ModelError(
            f"{path} cannot be used: {why}; `kgmlm onnx` makes it again, and --runtime torch does without"
        ) from None


def facts_of(path: Path, data: bytes, config: str) -> Facts:
    """The facts of a file's structure.

    Args:
        config: SHA-256 of the configuration that it must be of.

    Raises:
        ModelError: when it is damaged or of another model.
    """
    with _readable_errors(path):
        facts = read_facts(data)
        if facts.config != config:
            raise ValueError("it is the structure of another model")
    return facts


class Structure:
    """A model's structure with its weights, computed by ONNX Runtime.

    ``OMP_NUM_THREADS`` says how many threads it may use, as with torch; else as many as there are cores.

    Args:
        path: the structure's file.
        config: SHA-256 of the configuration that it must be of.
        tensors: of the model, by name.

    Raises:
        ModelError: when ONNX Runtime is not installed, or the file is damaged or of another model.
    """

    def __init__(self, path: Path, config: str, tensors: Mapping[str, Any]) -> None:
        if not installed("onnxruntime"):
            raise ModelError(f"{path} needs ONNX Runtime, which is not installed: pip install onnxruntime")
        import onnxruntime

        self.path = path
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is raised
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as OpenMP's threads here
        if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
            options.intra_op_num_threads = int(threads)
        data = path.read_bytes()
        self.facts = facts_of(path, data, config)
        with _readable_errors(path):
            names = self.facts.weights
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(tensors[name]) for name in names]
            options.add_external_initializers(names, values)
            self._values = values  # kept alive: the session reads from them
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self._process = os.getpid()

    def states(self, **given: IntArray) -> Floats:
        """The states of some texts.

        Raises:
            ModelError: in a fork of the process that opened it, which has none of the threads that compute.
        """
        if os.getpid() != self._process:
            raise ModelError(
                f"{self.path} was opened before this process was forked; open the run in the fork itself, or "
                "with runtime='torch'"
            )
        with _readable_errors(self.path):
            (hidden,) = self._session.run(None, given)
        states: Floats = hidden
        return states

    def try_out(self, width: int, **more: IntArray) -> None:
        """Read two short texts, one of them padded.

        Raises:
            ModelError: when the states are not those of a text model of a width.
        """
        mask_BT = np.ones((2, 6), np.int64)
        mask_BT[1, 4:] = 0
        states = self.states(input_ids=np.ones((2, 6), np.int64), attention_mask=mask_BT, **more)
        with _readable_errors(self.path):
            if states.dtype != np.float32 or states.shape[::2] != (2, width) or not np.isfinite(states).all():
                raise ValueError("it does not give the states of a text model")


class OnnxModel:
    """A masked LM that answers at the span only, as :class:`~kgmlm.text.torch_model.SpanModel` does.

    Args:
        folder: the model's.
        path: its structure.
    """

    gpu = None

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path
        self._config = sha256(folder / "config.json")
        facts = facts_of(path, path.read_bytes(), self._config)
        self.positions, self.tokens = facts.positions, facts.tokens

    @classmethod
    def open(cls, folder: Path, file: Path | None = None, *, later: bool = False) -> OnnxModel:
        """The model of a folder that has a structure.

        Args:
            file: another structure than the folder's own.
            later: read the weights when a text is first to be read, which may be never.

        Raises:
            ModelError: when ONNX Runtime is not installed, or the file is damaged or not of this model.
        """
        path = file or folder / ONNX_FILE
        if not installed("onnxruntime"):
            raise ModelError(f"{path} needs ONNX Runtime, which is not installed: pip install onnxruntime")
        model = cls(folder, path)
        if not later:
            _ = model.decoder
        return model

    @cached_property
    def _opened(self) -> tuple[Structure, tuple[Floats, Floats]]:
        """The structure with its weights, and the decoder's weight (V, D) and bias (V,)."""
        from safetensors.numpy import load_file

        with _readable_errors(self.path):
            tensors = load_file(self.folder / WEIGHTS)
        structure = Structure(self.path, self._config, tensors)
        with _readable_errors(self.path):
            decoder = _decoder(tensors, structure.facts)
        structure.try_out(decoder[0].shape[1], columns=np.array([[1, 2], [1, 2]], np.int64))
        return structure, decoder

    @property
    def decoder(self) -> tuple[Floats, Floats]:
        """Return the decoder's weight (V, D) and bias (V,)."""
        return self._opened[1]

    @property
    def width(self) -> int:
        """Return D."""
        return int(self.decoder[0].shape[1])

    def states(self, batch: MaskedBatch) -> States:
        """Encode a batch; one pass for all queries."""
        steps = np.arange(batch.span_length + batch.vector)
        columns_BS: IntArray = batch.span_start_B[:, None] + steps
        states_BSD = self._opened[0].states(
            input_ids=batch.input_ids_BT, attention_mask=batch.attention_mask_BT, columns=columns_BS
        )
        return States(states_BSD[:, :-1], unit(states_BSD[:, -1])) if batch.vector else States(states_BSD)

    def log_probabilities(
        self, states: States, pairs: PairTable, softmax_tokens: IntArray | None = None
    ) -> Floats:
        """See :class:`~kgmlm.text.reader.TextModel`."""
        return log_probabilities(self.decoder, states, pairs, softmax_tokens)

    def table(self, rows_ND: Floats) -> HostTable:
        """Rows where they are."""
        return HostTable(rows_ND)

    def reduce(self, enabled: bool = True) -> None:
        """Refuse to encode in bf16.

        Raises:
            ModelError: when it is asked to.
        """
        if enabled:
            raise ModelError("ONNX Runtime computes in fp32 here; --precision bf16 needs --runtime torch")


def read_facts(data: bytes) -> Facts:
    """Read the facts in the last bytes of a file.

    Raises:
        ValueError: when it says nothing that could be understood.
    """
    start = data.rfind(_MARK)
    if start < 0:
        raise ValueError("it is damaged, or not one of ours")
    try:
        return Facts.model_validate_json(data[start:])
    except ValidationError:
        raise ValueError("it is damaged, or of another version") from None


def _decoder(tensors: Mapping[str, Floats], facts: Facts) -> tuple[Floats, Floats]:
    weight_VD = tensors[facts.decoder[0]]
    if len(facts.decoder) == 1:
        return weight_VD, np.zeros(len(weight_VD), np.float32)
    return weight_VD, tensors[facts.decoder[1]]
