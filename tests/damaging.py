"""Files of every kind that have been damaged, by a seed: cut, flipped, or with other values in them."""

from __future__ import annotations

import copy
import io
import json
import math
import tomllib
import warnings
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

ODD = (
    "", " ", "\ufeff", "\u200b", "\u202eabc\u202c", "e\u0301", "\u00e9", "a\tb", '"', '"x', 'x"y"', "x\ny",
    "x\r", "\r\n", "\x00", "\x1b[31m", "nan", "NULL", "-1", "1e999", "[MASK]", "../x", "/", "\U0001f600",
    "head", "\u05d0\u05d1", "a" * 5000, "train", ",", "=", "[x]", "\u2028", "\x85", "\u0130", "\ud800",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 7, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 10**30, 10**400, 0.5, -0.5, -0.0, math.nan,
    math.inf, -math.inf, 1e308, 5e-324, True, False,
)  # fmt: skip


def encoded(text: str) -> bytes:
    """UTF-8, lone surrogates as the bytes that they would be."""
    return text.encode("utf-8", "surrogatepass")


def odd_value(random: Random) -> Any:
    """Something that was not expected."""
    nested: Any = random.choice(ODD)
    for _ in range(random.choice((1, 3, 50))):
        nested = random.choice(([nested], {"x": nested}))
    return random.choice((random.choice(ODD), random.choice(NUMBERS), None, [], {}, [0, 0], nested))


def damaged(random: Random, data: bytes) -> bytes:
    """Bytes that were cut, flipped, moved, or joined by others."""
    for _ in range(random.choice((1, 1, 1, 2, 6))):
        data = _damaged_once(random, data)
    return data


def _damaged_once(random: Random, data: bytes) -> bytes:
    end = len(data)
    # Often where formats keep what they say of the rest.
    ends = random.randint(0, min(end, 200)), random.randint(max(0, end - 200), end)
    at, length = random.choice((random.randint(0, end), *ends)), random.choice((1, 1, 2, 8, 100))
    bit = bytes([(data[at] if at < end else 0) ^ (1 << random.randrange(8))])
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: data[:at],
        lambda: data[at:],
        lambda: data[:at] + bit + data[at + 1 :],
        lambda: data[:at] + random.randbytes(length) + data[at:],
        lambda: data[:at] + random.randbytes(length) + data[at + length :],
        lambda: data[:at] + bytes(length) + data[at + length :],
        lambda: data[:at] + b"\xff" * length + data[at + length :],
        lambda: data[:at] + data[at + length :],
        lambda: data[:at] + data[at : at + length] * 2 + data[at + length :],
        lambda: data[:at] + encoded(random.choice(ODD)) + data[at:],
        lambda: random.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"PK\x03\x04", b"\x1f\x8b")) + data,
        lambda: data.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\n", b""))),
        lambda: data.replace(b"\t", random.choice((b",", b"\t\t", b" "))),
        lambda: random.choice((b"", b"\n", b"\x00" * 100, random.randbytes(300), b"[" * 100_000)),
    )
    return random.choice(changes)()


# --- trees: JSON and TOML ----------------------------------------------------------------------------------


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def changed_tree(random: Random, tree: dict[str, Any]) -> dict[str, Any]:
    """A tree with a few places changed, taken out, or put in."""
    tree = copy.deepcopy(tree)
    for _ in range(random.choice((1, 1, 1, 3))):
        places = list(_places(tree))
        if not places:
            break
        place, key = random.choice(places)
        how = random.randrange(6)
        if how <= 2:
            place[key] = odd_value(random)
        elif how == 3:
            del place[key]
        elif how == 4 and isinstance(place, dict):
            place[random.choice((*ODD, *place))] = odd_value(random)
        else:
            other, where = random.choice(places)
            with_value = copy.deepcopy(other[where] if _has(other, where) else None)
            place[key] = with_value
    return tree


def _has(place: Any, key: Any) -> bool:
    return key in place if isinstance(place, dict) else key < len(place)


def changed_json(random: Random, data: bytes) -> bytes:
    """JSON with other values, or no JSON any more."""
    if random.random() < 0.3:
        return damaged(random, data)
    text = json.dumps(changed_tree(random, json.loads(data)), indent=2)
    how = random.randrange(12)
    if how == 0:
        text = text.replace("{", '{"format": 1, "format": 2,', 1)
    elif how == 1:
        text = text.replace("null", "[" * 50_000 + "]" * 50_000, 1)
    elif how == 2:
        text = text.replace(": 1", ": 1" + "0" * 6000, 1)
    return text.encode()


def _no_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _no_none(v) for k, v in tree.items() if v is not None}
    return [_no_none(x) for x in tree if x is not None] if isinstance(tree, list) else tree


def changed_toml(random: Random, data: bytes) -> bytes:
    """TOML with other values, or no TOML any more."""
    if random.random() < 0.3:
        return damaged(random, data)
    text = tomli_w.dumps(_no_none(changed_tree(random, tomllib.loads(data.decode()))))
    how = random.randrange(12)
    if how == 0:
        text += text
    elif how == 1:
        text += "\nx = " + "[" * 50_000 + "]" * 50_000
    elif how == 2:
        text = text.replace("= 1", "= 1" + "0" * 6000, 1)
    return encoded(text)


# --- tables ------------------------------------------------------------------------------------------------


def changed_rows(random: Random, rows: list[list[str]]) -> list[list[str]]:
    """Rows with odd fields, or fields and rows too many, too few, or in another order."""
    rows = [list(row) for row in rows]
    for _ in range(random.choice((0, 1, 1, 2, 5))):
        at = random.randrange(len(rows))
        row = rows[at]
        how = random.randrange(8)
        if how <= 3 and row:
            rows[at][random.randrange(len(row))] = random.choice(ODD)
        elif how == 4:
            row.insert(random.randint(0, len(row)), random.choice((*ODD, *row)))
        elif how == 5 and row:
            row.pop(random.randrange(len(row)))
        elif how == 6:
            rows.insert(random.randint(0, len(rows)), list(random.choice(rows)))
        else:
            random.shuffle(rows)
    return rows


def table_of(rows: list[list[str]], columns: list[str]) -> pa.Table:
    """Rows as text columns; what is short is missing, lone surrogates become bytes that are no UTF-8."""
    arrays = []
    for i in range(len(columns)):
        texts = [encoded(row[i]) if i < len(row) else None for row in rows]
        arrays.append(pa.array(texts, pa.large_binary()).view(pa.large_string()))
    return pa.Table.from_arrays(arrays, names=columns)


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column, whose texts may be no UTF-8 after an earlier change."""
    if not pa.types.is_large_string(column.type):
        return list(column.to_pylist())
    data = column.cast(pa.large_binary()).to_pylist()
    return [None if value is None else value.decode("utf-8", "surrogatepass") for value in data]


def changed_table(random: Random, table: pa.Table) -> pa.Table:
    """An Arrow table with other columns, types, values or rows."""
    for _ in range(random.choice((1, 1, 2))):
        if not table.num_columns:
            break
        at = random.randrange(table.num_columns)
        name, column = table.column_names[at], table.column(at)
        values = values_of(column)
        how = random.randrange(11)
        try:
            if how == 0:
                table = table.remove_column(at)
            elif how == 1:
                table = table.append_column(random.choice((name, "extra", "")), column)
            elif how == 2:
                names = list(table.column_names)
                names[at] = random.choice((*names, "x", name.upper(), ""))
                table = table.rename_columns(names)
            elif how == 3:
                kinds = (
                    pa.binary(),
                    pa.int8(),
                    pa.int32(),
                    pa.uint64(),
                    pa.float64(),
                    pa.float16(),
                    pa.null(),
                    pa.dictionary(pa.int32(), column.type),
                    pa.string(),
                    pa.list_(column.type),
                )
                kind = random.choice(kinds)
                made = pa.array([[v] for v in values], kind) if pa.types.is_list(kind) else column.cast(kind)
                table = table.set_column(at, name, made)
            elif how == 4:
                table = table.slice(0, random.choice((0, 1, max(0, len(table) - 1))))
            elif how == 5:
                table = pa.concat_tables([table, table.slice(0, random.choice((1, len(table))))])
            elif how == 6:
                table = table.take(random.sample(range(len(table)), len(table)))
            else:
                odd = random.choice(NUMBERS if not isinstance(values[0], str) else ODD)
                values[random.randrange(len(values))] = random.choice((odd, None))
                if isinstance(values[0], str):
                    rows = [encoded(v) if isinstance(v, str) else v for v in values]
                    made = pa.array(rows, pa.large_binary()).view(pa.large_string())
                else:
                    made = pa.array(values)
                table = table.set_column(at, name, made)
        except (pa.ArrowException, OverflowError, IndexError, TypeError):
            continue  # a change that Arrow cannot express
    return table


def parquet(table: pa.Table) -> bytes:
    """A table as a file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def changed_parquet(random: Random, data: bytes) -> bytes:
    """Parquet of another table, or no Parquet any more."""
    if random.random() < 0.4:
        return damaged(random, data)
    return parquet(changed_table(random, pq.read_table(io.BytesIO(data))))


def changed_arrow(random: Random, data: bytes) -> bytes:
    """An Arrow file of another table, or none any more."""
    if random.random() < 0.4:
        return damaged(random, data)
    table = changed_table(random, pa.ipc.open_file(data).read_all())
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=random.choice((None, 5)))
    return sink.getvalue()


def changed_tensors(random: Random, data: bytes) -> bytes:
    """Safetensors of other tensors, a changed header, or none any more."""
    from safetensors.numpy import load, save

    how = random.randrange(5)
    length = int.from_bytes(data[:8], "little")
    if how == 0:
        return damaged(random, data)
    header = json.loads(data[8 : 8 + length])
    if how == 1:
        text = json.dumps(changed_tree(random, header)).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]
    tensors = load(data)
    for _ in range(random.choice((1, 1, 3))):
        name = random.choice(list(tensors))
        how = random.randrange(14)
        if how < 12:
            tensors[name] = _other_tensor(random, np.array(tensors[name]))
        elif how == 12 and len(tensors) > 1:
            del tensors[name]
        else:
            tensors[random.choice(ODD[:-1])] = tensors[name]
    return save(tensors, metadata=header.get("__metadata__"))


def _other_tensor(random: Random, value: Any) -> Any:
    """Of another shape or type, or with other numbers."""
    first = np.arange(value.size).reshape(value.shape) == 0
    odd = random.choice((math.nan, math.inf, -1, 10**9))
    most = {"f": 1e30, "b": 1}.get(value.dtype.kind) or min(10**9, np.iinfo(value.dtype).max)
    wrong: tuple[Callable[[], Any], ...] = (
        lambda: value[..., :-1],
        lambda: value[None],
        lambda: value.reshape(-1),
        lambda: np.concatenate([value, value]),
        lambda: value[:0],
        lambda: value.astype(random.choice((np.float64, np.float16, np.int32))),
        lambda: np.where(first, odd, value).astype(value.dtype),
        lambda: np.full_like(value, random.choice((0, -1, most))),
        lambda: np.zeros((), value.dtype),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.ascontiguousarray(random.choice(wrong)())
        except (ValueError, IndexError):  # of what has no dimension
            return value


def changed_array(random: Random, data: bytes) -> bytes:
    """A NumPy file of other numbers, or none any more."""
    if random.random() < 0.4:
        return damaged(random, data)
    values = np.load(io.BytesIO(data))
    if len(values):
        values[random.randrange(len(values))] = random.choice((-1, 31, 10**6, 2**62, 0))
    sink = io.BytesIO()
    np.save(sink, random.choice((values, values[:-1], values[None], values.astype(np.int32), values * 1.0)))
    return sink.getvalue()
