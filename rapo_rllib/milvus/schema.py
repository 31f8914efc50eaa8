"""Columns, indexes and conditions, and a check of rows before they are written. Flow: ``handle.py`` and ``lite/`` use it."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rapo_rllib.validation import utf8_size

if TYPE_CHECKING:
    import numpy as np

EXACT_LIMIT = 20_000  # rows up to which every query is compared with every row
BUILD_PARAMS = {"HNSW": {"M": 32, "efConstruction": 200}}  # as in the released code (algorithm.md section 9)
HNSW_EF_SEARCH = 128  # as in the released code
AUTO_EF_SEARCH = 200


def index_kind(num_rows: int, choice: str = "auto") -> str:
    """Choose the index by Milvus' name: FLAT compares a query with every row; HNSW and AUTOINDEX are approximate.

    Args:
        num_rows: of the collection.
        choice: one of ``INDEXES``; ``auto`` is exact while the collection is small.
    """
    if choice == "auto":
        return "FLAT" if num_rows <= EXACT_LIMIT else "AUTOINDEX"
    return "HNSW" if choice == "hnsw" else "FLAT"


def search_effort(choice: str, top_k: int) -> int:
    """Return ``ef``, the number of candidates that an approximate search keeps; Milvus demands at least ``top_k``."""
    return max(HNSW_EF_SEARCH if choice == "hnsw" else AUTO_EF_SEARCH, top_k)


MAX_VARCHAR_BYTES = 65_535  # UTF-8; a server refuses more, Lite does not
SCALARS = ("VARCHAR", "INT64", "DOUBLE")
VECTOR, TERMS = "vector", "terms"  # columns: dense keys, and weighted words, which Milvus makes by itself
BM25_PARAMS = {"bm25_k1": 1.2, "bm25_b": 0.75}  # named, because the defaults of Lite and server differ
# English words that do not tell texts apart. Half of all words are such, and Lite's time grows with the number of matches.
STOP_WORDS = (
    "a an and are as at be been but by did do does for from had has have he her his how i if in into is it its many much no "
    "not of on or she so than that the their them then there these they this those to was were what when where which who "
    "whom whose why will with would you"
)


@dataclass(frozen=True)
class Field:
    """A scalar column: ``kind`` is VARCHAR, INT64 or DOUBLE; ``max_bytes`` is for VARCHAR."""

    name: str
    kind: str = "VARCHAR"
    max_bytes: int = MAX_VARCHAR_BYTES


def collection_schema(fields: Sequence[Field], dim: int, words_of: str | None) -> Any:
    """Make a schema with primary key ``fields[0]``, vectors of width ``dim`` and, for BM25, words of column ``words_of``."""
    pymilvus = pymilvus_module()
    schema = pymilvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    for number, field in enumerate(fields):
        more: dict[str, Any] = {"max_length": field.max_bytes} if field.kind == "VARCHAR" else {}
        if field.name == words_of:
            stop = {"type": "stop", "stop_words": STOP_WORDS.split()}
            more |= {"enable_analyzer": True, "analyzer_params": {"tokenizer": "standard", "filter": ["lowercase", stop]}}
        schema.add_field(field.name, pymilvus.DataType[field.kind], is_primary=number == 0, **more)
    schema.add_field(VECTOR, pymilvus.DataType.FLOAT_VECTOR, dim=dim)
    if words_of is not None:
        schema.add_field(TERMS, pymilvus.DataType.SPARSE_FLOAT_VECTOR)
        kind = pymilvus.FunctionType.BM25
        bm25 = pymilvus.Function(name="bm25", function_type=kind, input_field_names=[words_of], output_field_names=[TERMS])
        schema.add_function(bm25)
    return schema


def index_params(kind: str, with_terms: bool = False) -> Any:
    """Describe the vector index of ``kind``, and with ``with_terms`` the index of words."""
    params = pymilvus_module().MilvusClient.prepare_index_params()
    built = {"params": BUILD_PARAMS[kind]} if kind in BUILD_PARAMS else {}
    params.add_index(VECTOR, index_type=kind, index_name=VECTOR, metric_type="COSINE", **built)
    if with_terms:
        params.add_index(TERMS, index_type="SPARSE_INVERTED_INDEX", index_name=TERMS, metric_type="BM25", params=BM25_PARAMS)
    return params


@dataclass(frozen=True)
class Shape:
    """A collection's scalar columns, with the bytes that each holds (None: not a text), vector width and primary key."""

    columns: dict[str, int | None]
    dim: int
    key: str

    @classmethod
    def described(cls, description: dict[str, Any]) -> Shape:
        """Read the shape of a collection from Milvus' description."""
        params = {field["name"]: field.get("params", {}) for field in description["fields"]}
        dim = int(params.pop(VECTOR, {}).get("dim", 0))
        params.pop(TERMS, None)
        key = next(field["name"] for field in description["fields"] if field.get("is_primary"))
        sizes = {name: int(given["max_length"]) if "max_length" in given else None for name, given in params.items()}
        return cls(sizes, dim, key)


def check_rows(rows: Sequence[dict[str, Any]], vectors: np.ndarray, shape: Shape) -> None:
    """Refuse rows that a Milvus server refuses, or that Milvus takes by mistake (Lite takes long texts and NaN).

    Raises:
        ValueError: a text is too long for its column or is no Unicode, a number is not finite, a column is missing, vectors are
            not finite or not of the collection's width, or a key appears twice in ``rows``.
    """
    import numpy as np

    if vectors.ndim != 2 or len(rows) != len(vectors) or not np.isfinite(vectors).all():
        raise ValueError(f"got {len(rows)} rows and vectors of shape {vectors.shape}; they must match and be finite numbers")
    if vectors.shape[1] != shape.dim:
        raise ValueError(f"got vectors of width {vectors.shape[1]}; the collection's are {shape.dim} wide")
    key = shape.key
    keys = [row.get(key) for row in rows]
    if len(set(keys)) < len(keys):
        doubled = next(k for k in keys if keys.count(k) > 1)
        raise ValueError(f"two rows have the same {key} {doubled!r}")
    for row in rows:
        if row.keys() != shape.columns.keys():
            wrong = f"row {row.get(key)!r} has the columns {sorted(row)}"
            raise ValueError(f"{wrong}; the collection's are {sorted(shape.columns)}")
        for name, value in row.items():
            if isinstance(value, str):
                what, most = f"{name} of row {row[key]!r}", shape.columns[name] or MAX_VARCHAR_BYTES
                if (size := utf8_size(value, what)) > most:
                    raise ValueError(f"{what} has {size} bytes; the column holds {most}. Shorten or drop it.")
            elif not math.isfinite(value):
                raise ValueError(f"{name} of row {row[key]!r} is {value}; the column holds finite numbers")


# Texts in conditions are data, and only the functions below quote them. Milvus' own expression parameters are no substitute:
# servers before 2.5 have none, and pymilvus inserts ``ids=`` unquoted.
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})  # Milvus knows no others


def escaped(text: str) -> str:
    """Escape a text that stands between double quotes."""
    return text.translate(_ESCAPES)


def literal(text: str) -> str:
    r"""Quote a text. Example: ``say "no"`` becomes ``"say \"no\""``."""
    return f'"{escaped(text)}"'


def one_of(column: str, texts: Iterable[str]) -> str:
    """Write the condition that a column holds one of the texts."""
    return f"{column} in [{', '.join(map(literal, texts))}]"


@dataclass(frozen=True)
class Condition:
    """The condition that a column holds ``text`` or, if ``negated``, any other text."""

    column: str
    text: str
    negated: bool = False

    @property
    def expression(self) -> str:
        """The condition in Milvus' language."""
        return f"{self.column} {'!=' if self.negated else '=='} {literal(self.text)}"


def pymilvus_module() -> ModuleType:
    """Import ``pymilvus`` and return it; the first import takes a second."""
    with _import_alone():
        import pymilvus
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs a traceback for every error that it also raises
    return pymilvus


@contextmanager
def _import_alone() -> Iterator[None]:
    """Keep an import from reading a .env file into our environment and from shutting down logging handlers.

    A handler may close its stream when it is shut down: absl's does, even if the stream is the terminal or a test runner's.
    """
    undo, handlers = "PYTHON_DOTENV_DISABLED" not in os.environ, logging._handlerList[:]  # type: ignore[attr-defined]
    os.environ.setdefault("PYTHON_DOTENV_DISABLED", "1")
    logging._handlerList.clear()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        logging._handlerList[:0] = handlers  # type: ignore[attr-defined]
        if undo:
            os.environ.pop("PYTHON_DOTENV_DISABLED", None)
