"""A frozen text encoder: texts to one unit vector each, by the pooling that the encoder was made with.

It is any encoder that transformers loads, or a folder of sentence-transformers. Weights, configuration and
tokenizer travel as tensors, so that a signal keeps them in its own file. torch is imported where texts are
read, and not before.

Shapes: N texts, B of them in a batch, T tokens, D width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.errors import ModelError
from kgmlm.core.machine import bound_memory, installed, keep_memory, reduced
from kgmlm.core.progress import watcher_of
from kgmlm.text.onnx_model import Structure
from kgmlm.text.tokenization import check_model_folder, model_named, reason, transformers_tokenizer

Pooling = Literal["mean", "cls", "max", "lasttoken"]
_TEXTS = 8192  # tokenized at once
_UNUSED = "pooler."  # of weights that no pooling here needs, and many checkpoints lack
ENCODER, _CONFIG, _TOKENIZER = "encoder.", "encoder:config", "encoder:tokenizer"


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """An encoder whose weights do not change.

    Attributes:
        config: as of ``config.json``.
        tokenizer: the contents of ``tokenizer.json``.
        weights: gives the tensors of the encoder by name, when a text is first read.
        pooling: how the states of a text's tokens become one vector.
        max_length: tokens that are read of a text.
        prefix: of the encoder's tensors in the checkpoint of a masked LM of its kind, such as "bert".
        structure: the file for ONNX Runtime, which then reads the texts if the file is there.
    """

    config: Mapping[str, Any]
    tokenizer: bytes
    weights: Callable[[], Mapping[str, Any]]
    pooling: Pooling
    max_length: int
    prefix: str = ""
    structure: Path | None = None

    @classmethod
    def load(cls, address: str, max_length: int) -> TextEncoder:
        """Load an encoder by hub name or folder.

        Raises:
            ModelError: when it cannot be loaded, has no fast tokenizer, or pools in another way.
        """
        from transformers import AutoModel

        address = model_named(address)
        check_model_folder(address)
        try:
            model, info = AutoModel.from_pretrained(
                address, output_loading_info=True, trust_remote_code=False
            )
            missing = set(info["missing_keys"])
            if lost := [name for name in missing if _UNUSED not in name]:
                raise ValueError(f"it lacks weights, such as {min(lost)}")
            tokenizer: Any = transformers_tokenizer(address)
            config = model.config.to_dict()
            if config.get("is_encoder_decoder"):
                raise ValueError("it has a decoder, too")
            if not tokenizer.is_fast:
                raise ValueError("its tokenizer is slow; kgmlm needs a tokenizer.json")
            core = tokenizer.backend_tokenizer.to_str().encode()
            pooling = _pooling(address)
        except ModelError:
            raise
        except Exception as error:  # whatever a broken folder makes the libraries raise
            raise ModelError(f"no text encoder can be loaded from '{address}': {reason(error)}") from None
        tensors = {k: x.detach() for k, x in model.state_dict().items() if _UNUSED not in k}
        positions = config.get("max_position_embeddings")
        limit = max_length if not isinstance(positions, int) else min(max_length, positions - 2)
        return cls(config, core, lambda: tensors, pooling, limit, str(model.base_model_prefix))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that the vectors of texts depend on, but for the precision."""
        digest = sha256()
        for name, array in sorted(self.as_tensors().items()):
            digest.update(name.encode())
            digest.update(array.data)
        return digest.hexdigest()

    @cached_property
    def config_digest(self) -> str:
        """SHA-256 of the configuration."""
        return sha256(json.dumps(self.config, sort_keys=True, default=str).encode()).hexdigest()

    def by_onnx(self, structure: Path) -> TextEncoder:
        """A copy that ONNX Runtime computes, where there is such a file."""
        return replace(self, structure=structure)

    @property
    def width(self) -> int:
        """Return D."""
        return int(self.config.get("hidden_size") or self.config["dim"])

    def as_tensors(self, *, weights: bool = True) -> dict[str, npt.NDArray[Any]]:
        """All that :meth:`of_tensors` needs to rebuild the encoder.

        Args:
            weights: False leaves them out, where they are in the run's model, too.
        """
        tensors: dict[str, npt.NDArray[Any]] = {
            f"{ENCODER}{name}": np.ascontiguousarray(_array(tensor))
            for name, tensor in (self.weights().items() if weights else ())
        }
        own = {"pooling": self.pooling, "max_length": self.max_length, "prefix": self.prefix}
        config = dict(self.config) | {"kgmlm": own}
        for name, data in (
            (_CONFIG, json.dumps(config, default=str).encode()),
            (_TOKENIZER, self.tokenizer),
        ):
            tensors[name] = np.frombuffer(data, np.uint8).copy()
        return tensors

    @classmethod
    def of_tensors(
        cls, names: Sequence[str], read: Callable[[str], npt.NDArray[Any]], model: Path | None = None
    ) -> TextEncoder:
        """The encoder that :meth:`as_tensors` saved.

        Args:
            names: of all tensors in the file; those that are not the encoder's are ignored.
            read: gives a tensor by its name; weights are asked for when a text is first read.
            model: the file of a masked LM, whose weights are taken where there are no others.

        Raises:
            KeyError, ValueError: when something is missing or cannot be right.
        """
        config = json.loads(read(_CONFIG).tobytes())
        own = config.pop("kgmlm")
        if own["pooling"] not in get_args(Pooling) or not isinstance(own["max_length"], int):
            raise ValueError("its encoder has an unknown pooling")
        mine = [name for name in names if name.startswith(ENCODER)]
        if not mine and model is None:
            raise ValueError("its encoder has no weights")
        prefix = str(own["prefix"])

        def weights() -> dict[str, npt.NDArray[Any]]:
            if mine:
                return {name.removeprefix(ENCODER): read(name) for name in mine}
            from safetensors.numpy import load_file

            assert model is not None
            start = f"{prefix}."
            tensors = load_file(model)
            return {k.removeprefix(start): x for k, x in tensors.items() if k.startswith(start)}

        return cls(config, read(_TOKENIZER).tobytes(), weights, own["pooling"], own["max_length"], prefix)

    def read(
        self,
        texts: Sequence[str],
        batch_size: int = 64,
        device: str | None = None,
        precision: str = "auto",
    ) -> Iterator[tuple[IntArray, Floats]]:
        """Read texts: yields (rows of ``texts``, unit vectors ``(B, D)``), in no set order.

        Args:
            device: torch's; None is the CPU.
            precision: "fp32", "bf16", or "auto": bf16 where that is faster.
        """
        if not len(texts):
            return
        states = self._states(device, precision)
        for start in range(0, len(texts), _TEXTS):
            ids = [e.ids for e in self._tokenizer.encode_batch(list(texts[start : start + _TEXTS]))]
            order = np.argsort([-len(i) for i in ids], kind="stable")
            for begin in range(0, len(order), batch_size):
                rows = order[begin : begin + batch_size]
                ids_BT, mask_BT = _padded([ids[i] for i in rows])
                pooled_BD = _pooled(states(ids_BT, mask_BT), mask_BT, self.pooling)
                length_B1 = np.linalg.norm(pooled_BD, axis=1, keepdims=True)
                yield start + rows, pooled_BD / np.maximum(length_B1, np.float32(1e-12))
                bound_memory()

    def _states(self, device: str | None, precision: str) -> Callable[[IntArray, IntArray], Floats]:
        """A function from token ids and their mask to states ``(B, T, D)``."""
        if self.structure is not None and self.structure.is_file():
            structure = self._by_onnx
            return lambda ids_BT, mask_BT: structure.states(input_ids=ids_BT, attention_mask=mask_BT)
        if not installed("torch"):
            raise ModelError(
                "the bi-encoder reads new texts with torch, which is not installed, or with ONNX Runtime "
                "where `kgmlm onnx` was run before"
            )
        import torch

        from kgmlm.text.torch_model import bf16_fault

        keep_memory()
        model = self.model.to(device or "cpu")
        low = reduced(precision, model.device.type == "cuda")
        if low and (why := bf16_fault(model)):
            watcher_of(True).tell(f"texts are encoded in fp32, since the encoder fails in bf16: {why}")
            low = False

        def states(ids_BT: IntArray, mask_BT: IntArray) -> Floats:
            units = torch.autocast(model.device.type, torch.bfloat16) if low else nullcontext()
            ids, mask = (torch.from_numpy(x).to(model.device) for x in (ids_BT, mask_BT))
            with torch.inference_mode(), units:
                states = model(input_ids=ids, attention_mask=mask).last_hidden_state
            array: Floats = states.float().cpu().numpy()
            return array

        return states

    @cached_property
    def _by_onnx(self) -> Structure:
        assert self.structure is not None
        tensors = {name: _array(x) for name, x in self.weights().items()}
        structure = Structure(self.structure, self.config_digest, tensors)
        structure.try_out(self.width)
        return structure

    def tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens that are read of some texts."""
        return sum(len(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts)))

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        core = Tokenizer.from_str(self.tokenizer.decode())
        core.no_padding()
        core.enable_truncation(self.max_length)
        return core

    @cached_property
    def model(self) -> Any:
        """The encoder by torch.

        Raises:
            ModelError: when its weights do not fit its configuration.
        """
        import torch
        from transformers import AutoConfig, AutoModel

        try:
            config = AutoConfig.for_model(**self.config)
            model = AutoModel.from_config(config, trust_remote_code=False)
            tensors = {
                name: x if isinstance(x, torch.Tensor) else torch.from_numpy(x.copy())
                for name, x in self.weights().items()
            }
            keys = model.load_state_dict(tensors, strict=False)
            lost = [name for name in keys.missing_keys if _UNUSED not in name]
            if lost or keys.unexpected_keys:
                raise ValueError(
                    f"its weights are not those of its model, such as {[*lost, *keys.unexpected_keys][0]}"
                )
        except Exception as error:
            raise ModelError(f"the text encoder of the bi-encoder cannot be used: {reason(error)}") from None
        return model.float().eval()


def _array(tensor: Any) -> npt.NDArray[Any]:
    """A tensor of either kind as NumPy's; of floating numbers as float32."""
    if isinstance(tensor, np.ndarray):
        return tensor
    tensor = tensor.float() if tensor.is_floating_point() else tensor
    array: npt.NDArray[Any] = tensor.cpu().numpy()
    return array


def _padded(ids: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Token ids and mask ``(B, T)``; what is padded is masked, so that its id does not matter."""
    lengths_B = np.array([len(row) for row in ids])
    mask_BT = np.arange(max(1, lengths_B.max())) < lengths_B[:, None]
    ids_BT = np.zeros(mask_BT.shape, np.int64)
    ids_BT[mask_BT] = np.concatenate([np.asarray(row, np.int64) for row in ids])
    return ids_BT, mask_BT.astype(np.int64)


def _pooled(states_BTD: Floats, mask_BT: IntArray, pooling: Pooling) -> Floats:
    """One vector of each text ``(B, D)``."""
    if pooling == "cls":
        return states_BTD[:, 0]
    if pooling == "lasttoken":
        last: Floats = states_BTD[np.arange(len(states_BTD)), mask_BT.sum(1) - 1]
        return last
    mask_BT1 = mask_BT[:, :, None].astype(np.float32)
    if pooling == "max":
        highest: Floats = np.where(mask_BT1 == 0, np.float32(-1e9), states_BTD).max(1)
        return highest
    mean: Floats = (states_BTD * mask_BT1).sum(1) / np.maximum(mask_BT1.sum(1), 1)
    return mean


def _pooling(address: str) -> Pooling:
    """The pooling that a sentence-transformers folder declares; for other encoders, the mean.

    Layers behind the pooling are left out: what learns from the vectors has a projection of its own.

    Raises:
        ValueError: when it pools in another way than we know.
    """
    modules = _json(address, "modules.json")
    if not isinstance(modules, list):
        return "mean"
    paths = [str(m.get("path", "")) for m in modules if str(m.get("type", "")).endswith("Pooling")]
    config = _json(address, f"{paths[0]}/config.json") if paths else None
    if not isinstance(config, dict):
        return "mean"
    named = {
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value is True
    } or {str(config.get("pooling_mode", "mean"))}
    known: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "lasttoken"}
    pooling = named.pop()
    if named or pooling not in known:
        raise ValueError(
            f"its pooling '{' and '.join(sorted({pooling, *named}))}' is none of {', '.join(known)}"
        )
    return known[pooling]


def _json(address: str, name: str) -> Any:
    """A JSON file of a folder or of a model on the hub; None where there is none."""
    folder = Path(address)
    if folder.is_dir():
        path = folder / name
        return json.loads(path.read_bytes()) if path.is_file() else None
    from transformers.utils import cached_file

    file = cached_file(
        address,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return json.loads(Path(file).read_bytes()) if file else None
