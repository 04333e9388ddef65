"""Make a run ready for ONNX Runtime: export the structures of its text models.

Shapes: B texts, T tokens, S positions read per text, D width of the model, H heads of width K.
"""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kgmlm.core.digests import sha256
from kgmlm.core.errors import ConfigError, ModelError, RunError, first_line
from kgmlm.core.machine import installed
from kgmlm.core.progress import Watcher, quiet_transformers
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.models import open_text
from kgmlm.runs.opened import open_folder
from kgmlm.runs.run import Run, path_of, writes_run
from kgmlm.runs.writing import replacing
from kgmlm.signals.biencoder import Biencoder
from kgmlm.text.encoder import TextEncoder
from kgmlm.text.onnx_model import KEY, ONNX_FILE, WEIGHTS, Facts, OnnxModel, read_facts
from kgmlm.text.tokenization import MaskedBatch
from kgmlm.text.torch_model import FAMILIES, PackedEncoder, SpanModel

NEEDED = ("onnx", "onnxruntime")
OPSET = 17  # of ONNX: the first with layer normalization
TOLERANCE = 1e-4  # largest difference between torch and ONNX Runtime, of states, vectors and scores


class _Encoder(nn.Module):
    """The states of texts, as :class:`~kgmlm.text.torch_model.PackedEncoder` computes them, of any sizes.

    Args:
        base: the encoder.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base

    def forward(self, input_ids_BT: torch.Tensor, attention_mask_BT: torch.Tensor) -> torch.Tensor:
        """``(B, T, D)``."""
        return self.states(input_ids_BT, attention_mask_BT, None)

    def states(
        self, input_ids_BT: torch.Tensor, attention_mask_BT: torch.Tensor, columns_BS: torch.Tensor | None
    ) -> torch.Tensor:
        """The states of all positions, or of some positions of each text ``(B, S, D)``."""
        states_BTD = self.base.embeddings(input_ids=input_ids_BT)
        if (projection := getattr(self.base, "embeddings_project", None)) is not None:
            states_BTD = projection(states_BTD)
        hidden = (1.0 - attention_mask_BT.float())[:, None, None, :] * torch.finfo(torch.float32).min
        *layers, last = self.base.encoder.layer
        for layer in layers:
            states_BTD = _after(layer, states_BTD, states_BTD, hidden)
        asking = states_BTD
        if columns_BS is not None:
            asking = states_BTD.gather(1, columns_BS[:, :, None].expand(-1, -1, states_BTD.shape[2]))
        return _after(last, asking, states_BTD, hidden)


class _AtSpan(_Encoder):
    """The states that enter a masked LM's decoder, at some positions of each text."""

    def __init__(self, model: SpanModel) -> None:
        super().__init__(model.mlm.base_model)
        self.model = model

    def forward(  # type: ignore[override]
        self, input_ids_BT: torch.Tensor, attention_mask_BT: torch.Tensor, columns_BS: torch.Tensor
    ) -> torch.Tensor:
        """``(B, S, D)``."""
        entering: torch.Tensor = self.model.through_head(
            self.states(input_ids_BT, attention_mask_BT, columns_BS)
        )
        return entering


def _after(layer: Any, asking: torch.Tensor, states: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Some positions behind a layer, which look at all positions of their texts."""
    attention = layer.attention.self
    heads = (attention.num_attention_heads, attention.attention_head_size)
    query, key, value = (
        linear(x).unflatten(-1, heads).transpose(1, 2)
        for linear, x in ((attention.query, asking), (attention.key, states), (attention.value, states))
    )
    scores = query @ key.transpose(2, 3) * attention.attention_head_size**-0.5 + hidden
    mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    attended = layer.attention.output(mixed, asking)
    forwarded: torch.Tensor = layer.output(layer.intermediate(attended), attended)
    return forwarded


def _check(packs: bool, name: str) -> None:
    """Refuse what cannot be exported, or not here.

    Raises:
        ConfigError: when what that needs is not installed.
        ModelError: when the model is of another family.
    """
    if not packs:
        raise ModelError(f"{name} cannot be exported; these families can: {', '.join(FAMILIES)}")
    if missing := [name for name in NEEDED if not installed(name)]:
        raise ConfigError(f"the export needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def export(model: SpanModel, folder: Path, path: Path) -> float:
    """Write the structure of a model that was saved in a folder, and see that it computes the same.

    Args:
        model: on the CPU, as it is in the folder.
        folder: its ``config.json`` and ``model.safetensors``.
        path: the file to write.

    Raises:
        ConfigError: when what that needs is not installed.
        ModelError: when the model is of a family that cannot be exported, or it does not compute the same.

    Returns:
        The greatest difference of its states from torch's.
    """
    from safetensors import safe_open

    _check(model.packs, type(model.mlm).__name__)
    model.eval()
    with safe_open(folder / WEIGHTS, "np") as saved:
        shapes = {name: tuple(saved.get_slice(name).get_shape()) for name in saved.keys()}  # noqa: SIM118
    tensors = model.mlm.state_dict(keep_vars=True)
    saved_as = {id(tensor): name for name, tensor in tensors.items() if name in shapes}  # tied ones once
    module = _AtSpan(model)
    named = {n: saved_as[id(x)] for n, x in module.state_dict(keep_vars=True).items() if id(x) in saved_as}
    layer = model.mlm.get_output_embeddings()
    decoder = [saved_as.get(id(tensor), "") for tensor in (layer.weight, layer.bias) if tensor is not None]
    if not all(decoder):
        raise ModelError(f"{folder / WEIGHTS} has no tensor of the decoder as the model has it")
    facts = Facts(
        kgmlm_structure=1,
        config=sha256(folder / "config.json"),
        weights=[WEIGHTS],  # until they are known
        decoder=decoder,
        positions=model.positions,
        tokens=model.tokens,
    )
    path.write_bytes(_structure(module, named, shapes, facts))
    difference = _difference(model, OnnxModel.open(folder, path))
    if not difference <= TOLERANCE:
        raise ModelError(f"{folder}: ONNX Runtime computes other states than torch, by {difference:.2g}")
    return difference


def export_encoder(encoder: TextEncoder, path: Path) -> None:
    """Write the structure of a bi-encoder's encoder, and see that it computes the same.

    Raises:
        ConfigError, ModelError: as of :func:`export`.
    """
    model = encoder.model
    _check(PackedEncoder.of(model) is not None, type(model).__name__)
    module = _Encoder(model)
    shapes = {name: tuple(x.shape) for name, x in model.state_dict().items()}
    facts = Facts(
        kgmlm_structure=1,
        config=encoder.config_digest,
        weights=[WEIGHTS],
        decoder=[],
        positions=encoder.max_length,
        tokens=model.get_input_embeddings().num_embeddings,
    )
    path.write_bytes(_structure(module, {f"base.{name}": name for name in shapes}, shapes, facts))
    texts = ["a", "knowledge graphs and language models", "?" * 9]
    torchs, theirs = (_vectors(one, texts) for one in (encoder, encoder.by_onnx(path)))
    difference = float(np.abs(torchs - theirs).max())
    if not difference <= TOLERANCE:
        raise ModelError(f"{path}: ONNX Runtime computes other vectors than torch, by {difference:.2g}")


def _vectors(encoder: TextEncoder, texts: list[str]) -> np.ndarray[Any, Any]:
    """Vectors of texts in their order."""
    parts = list(encoder.read(texts, precision="fp32"))
    return np.concatenate([x for _, x in parts])[np.argsort(np.concatenate([rows for rows, _ in parts]))]


def _structure(
    module: nn.Module, named: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], facts: Facts
) -> bytes:
    """A module without its weights.

    Args:
        named: by which name each of its tensors is saved.
        shapes: of the saved ones.
        facts: but for the weights.
    """
    import onnx

    traced = onnx.load_from_string(_traced(module))
    # Torch merges equal weights, as in a fresh model, but the saved ones may differ.
    for node in [n for n in traced.graph.node if n.op_type == "Identity" and n.output[0] in named]:
        name = node.output[0]
        dims = shapes[named[name]]
        traced.graph.initializer.add(name=name, dims=dims, data_type=onnx.TensorProto.FLOAT)
        traced.graph.node.remove(node)
    for tensor in traced.graph.initializer:
        if tensor.name not in named or shapes[named[tensor.name]] != tuple(tensor.dims):
            raise ModelError(f"the saved weights have no tensor '{tensor.name}' as the model has it")
        tensor.name = named[tensor.name]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        place = tensor.external_data.add()
        place.key, place.value = "location", WEIGHTS
    for node in traced.graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = named.get(name, name)
    facts = facts.model_copy(update={"weights": [tensor.name for tensor in traced.graph.initializer]})
    entry = traced.metadata_props.add()
    entry.key, entry.value = KEY, facts.model_dump_json()
    data: bytes = traced.SerializeToString(deterministic=True)
    if read_facts(data) != facts:
        raise ModelError("the structure cannot be read as it was written")
    return data


def _traced(module: nn.Module) -> bytes:
    """The graph that torch writes, for any number of texts, tokens and positions."""
    buffer = io.BytesIO()
    texts = [torch.full((2, 9), 5), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])]
    axes = {"input_ids": {0: "B", 1: "T"}, "attention_mask": {0: "B", 1: "T"}}
    if isinstance(module, _AtSpan):
        texts.append(torch.tensor([[1, 2], [2, 3]]))
        axes["columns"] = {0: "B", 1: "S"}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its deprecation
        torch.onnx.export(
            module.eval(),
            tuple(texts),
            buffer,
            dynamo=False,  # the newer exporter gives weights other names
            opset_version=OPSET,
            do_constant_folding=False,  # it would fold weights
            input_names=list(axes),
            output_names=["states"],
            dynamic_axes={**axes, "states": {0: "B", 1: "S"}},
        )
    return buffer.getvalue()


def _difference(model: SpanModel, other: OnnxModel) -> float:
    """The greatest difference of the states of texts of random tokens."""
    rng = np.random.default_rng(0)
    greatest = 0.0
    longest = min(model.positions or 64, 64)
    for texts, length, span in ((1, longest, 1), (3, longest // 2, 3)):
        lengths = rng.integers(span + 1, length + 1, texts)
        lengths[0] = length
        batch = MaskedBatch(
            rng.integers(0, model.tokens, (texts, length)),
            (np.arange(length) < lengths[:, None]).astype(np.int64),
            rng.integers(0, lengths - span),
            span,
            vector=True,
        )
        one, two = model.states(batch), other.states(batch)
        assert one.vector_BD is not None
        assert two.vector_BD is not None
        pairs = ((one.hidden_BLD, two.hidden_BLD), (one.vector_BD, two.vector_BD))
        greatest = max(greatest, *(float(np.abs(a - b).max()) for a, b in pairs))
    return greatest


CHECKED = 8  # queries that are ranked by both


@writes_run
def onnx(run: Run | str | Path) -> Path:
    """Write what ONNX Runtime needs to read texts for a run: then it ranks and is served without torch.

    Training does this at its end; call it for a run trained with ``onnx=False``, or for a new bi-encoder.
    It is the structure of the model alone, some 100 kB, and of the encoder of a bi-encoder; weights stay
    where they are. It is kept when both give the same scores, to 1e-4. Training the run further removes it.

    Returns:
        The file.

    Raises:
        RunError: when training has left no model yet, or scores differ.
        ModelError: when a model is of a family that cannot be exported. The structure of the run's model is
            kept even where that of its bi-encoder's encoder cannot be made.
        ConfigError: when onnx or onnxruntime is not installed.
    """
    return make_ready(open_folder(path_of(run)))


def made_ready(path: Path, watch: Watcher) -> None:
    """Make a run that was just trained ready for ONNX Runtime, or say why torch will read its texts."""
    folder = open_folder(path)
    if not folder.record.get("onnx", True):
        return
    structures = [path / "model" / ONNX_FILE]
    structures += [path / Biencoder.structure] if folder.has_signal(Biencoder.name) else []
    if all(file.is_file() for file in structures):
        return
    try:
        make_ready(folder)
    except Exception as error:  # including the exporter's own, which must not fail a training
        watch.tell(f"torch will read the texts of {path}: {first_line(error)}")


def make_ready(folder: RunFolder) -> Path:
    """Write the structures of a run's text models; errors as of :func:`onnx`."""
    model = folder.model_folder
    if not (model / "config.json").is_file():
        raise RunError(f"{folder.path} has no trained model yet")
    with replacing(folder.path, f"model/{ONNX_FILE}") as temporary:
        _write(model, temporary)
        _compare(folder, temporary)
    if folder.has_signal(Biencoder.name):
        with replacing(folder.path, Biencoder.structure) as temporary:
            _write_encoder(folder.path, temporary)
    return model / ONNX_FILE


def _write(folder: Path, path: Path) -> None:
    """The structure of a folder's model."""
    from kgmlm.text.torch_model import load_model

    quiet_transformers()
    export(load_model(folder), folder, path)


def _write_encoder(run: Path, path: Path) -> None:
    """The structure of the encoder of a run's bi-encoder."""
    quiet_transformers()
    export_encoder(Biencoder.open(run / Biencoder.file, open_folder(run).graph).encoder, path)


def _compare(run: RunFolder, file: Path) -> None:
    """See that torch and ONNX Runtime give the names of entities the same likelihoods.

    Raises:
        RunError: when they do not.
    """
    from kgmlm.ranking.ranker import Ranker

    asked, _ = run.graph.queries("train")
    some = asked[np.linspace(0, len(asked) - 1, min(CHECKED, len(asked)), dtype=np.int64)]
    one = open_text(run, "cpu")
    alone = one.mixture.only("likelihood")
    one, reader = one.replace(mixture=alone), one.reader
    model = OnnxModel.open(run.model_folder, file)
    other = Ranker.initial(reader.context, reader.tokenizer, model, reader.settings, reader.vocabulary)
    other.reader.adopt_names(reader.names)
    for (_, first_bN), (_, second_bN) in zip(
        one.rank(some), other.replace(mixture=alone).rank(some), strict=True
    ):
        difference = float(np.abs(first_bN - second_bN).max())
        if not difference <= TOLERANCE:
            raise RunError(f"{run.path}: ONNX Runtime gives other scores than torch, by {difference:.2g}")


def structures_of(run: Path, tell: Callable[[str], None]) -> dict[str, bytes]:
    """The structures of a run's model and of its bi-encoder's encoder, by file: the run's own, or new ones.

    Args:
        tell: called with what fails, and why: a family that cannot be exported, or something not installed.
    """
    writers = {f"model/{ONNX_FILE}": (partial(_write, run / "model"), "the pack will need torch")}
    if (run / Biencoder.file).is_file():
        writers[Biencoder.structure] = (partial(_write_encoder, run), "new texts will need torch")
    structures = {}
    for name, (write, lack) in writers.items():
        if (run / name).is_file():
            structures[name] = (run / name).read_bytes()
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                write(path := Path(folder) / "new.onnx")
            except (ConfigError, ModelError) as error:
                tell(f"{lack}: {error}")
            else:
                structures[name] = path.read_bytes()
    return structures
