"""Checkpoints: the arrays of a pytree in one file, written atomically and read without running code.

A checkpoint is an uncompressed `.npz`: one `.npy` member per leaf, named by its path in the pytree, and the
member `checkpoint.json` with the format version, the shape, type and SHA-256 of each leaf, and a small JSON
object of the caller's. Reading needs a template with the expected structure; whatever differs from it is
refused before any array is allocated, and nothing is ever unpickled or unpacked to disk.
"""

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import briee
from briee.rundir import RunError, sync_folder

FORMAT = 1
KIND = "briee checkpoint"
STRUCTURE = "checkpoint.json"
_STRUCTURE_LIMIT = 16 * 2**20
_HEADER_LIMIT = 4096
_CHUNK = 4 * 2**20


class CheckpointError(RunError):
    """A checkpoint is missing, damaged, foreign or does not fit; the message is one sentence."""


class Loaded(NamedTuple):
    """A pytree read from a checkpoint and the JSON object stored beside it."""

    state: Any
    extra: dict[str, Any]


class _Expected(NamedTuple):
    """What a template says about one leaf: the shape and type of the stored array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    is_key: bool

    @property
    def limit(self) -> int:
        """Bytes its member may have: the header and, for integers, twice the width (see `fits`)."""
        return 2 * int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize + _HEADER_LIMIT

    def fits(self, shape: tuple[int, ...], dtype: np.dtype) -> bool:
        """A template made by tracing has 32-bit integers where the state has NumPy's 64-bit ones."""
        traced = jax.dtypes.canonicalize_dtype(dtype) if dtype.kind in "iu" else dtype
        return shape == self.shape and self.dtype in (dtype, traced)


def save(path: Path, state: Any, extra: dict[str, Any]) -> None:
    """Write the leaves of `state` (arrays or random keys) and the JSON object `extra` to `path`.

    The file appears under its name only when it is whole and on disk; an older one stays until then. Equal
    contents give equal bytes, for no time of day is stored.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive, ThreadPoolExecutor(1) as pool:
                leaves = [_write_leaf(archive, pool, *item) for item in _named_leaves(state).items()]
                structure = {"kind": KIND, "format": FORMAT, "briee": briee.__version__, "leaves": leaves}
                text = json.dumps(structure | {"extra": extra}, indent=1)
                archive.writestr(zipfile.ZipInfo(STRUCTURE), text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def load(path: Path, template: Any, *, finite: Collection[str] | None = None) -> Loaded:
    """Read `path` into the structure of `template`, a pytree of arrays or `jax.ShapeDtypeStruct`.

    Every leaf must have the template's name, shape and type and the recorded checksum, and those named in
    `finite` (None: all) may not hold NaN or infinity; else `CheckpointError`. Leaves come back as saved, as
    NumPy or JAX arrays.
    """
    with _one_kind_of_error(path):
        return _load(path, template, finite)


def read_extra(path: Path) -> dict[str, Any]:
    """The JSON object stored beside the arrays, without reading any of them; `CheckpointError` if damaged."""
    with _one_kind_of_error(path), zipfile.ZipFile(path) as archive:
        return _read_structure(archive, {info.filename: info for info in archive.infolist()})["extra"]


@contextlib.contextmanager
def _one_kind_of_error(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file is a `CheckpointError` that names it."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"cannot load {path}: {error}") from None
    except FileNotFoundError:
        raise CheckpointError(f"cannot load {path}: there is no such file") from None
    except Exception as error:  # a hostile file may upset any parser; the caller gets one kind of error
        raise CheckpointError(f"cannot load {path}: {_damage(error)}") from error


class NonFinite(NamedTuple):
    """Where a NaN or an infinity stands."""

    name: str
    index: tuple[int, ...]
    shape: tuple[int, ...]


def nonfinite(
    state: Any, names: Collection[str] | None = None, largest: int | None = None
) -> NonFinite | None:
    """The first NaN or infinity in the leaves among `names` (None: all) with up to `largest` numbers (None:
    any), if there is one."""
    for name, leaf in _named_leaves(state).items():
        asked = (names is None or name in names) and (largest is None or leaf.size <= largest)
        if asked and not _is_finite(leaf):
            index = np.argwhere(~np.isfinite(np.asarray(leaf)))[0]
            return NonFinite(name, tuple(map(int, index)), tuple(leaf.shape))
    return None


def finite_names(state: Any) -> frozenset[str]:
    """Names of the leaves of `state` without NaN or infinity."""
    return frozenset(name for name, leaf in _named_leaves(state).items() if _is_finite(leaf))


class Folder:
    """Numbered checkpoints in one directory; the newest and the one before it are kept."""

    def __init__(self, path: Path):
        self.path = path

    def numbers(self) -> list[int]:
        """The numbers of the checkpoints there are, ascending."""
        return sorted(int(file.stem) for file in self.path.glob("*.npz") if file.stem.isdecimal())

    def file(self, number: int) -> Path:
        """Where checkpoint `number` is stored."""
        return self.path / f"{number:08d}.npz"

    def save(self, number: int, state: Any, extra: dict[str, Any]) -> None:
        """Write checkpoint `number`, then drop all but the newest two."""
        self.path.mkdir(exist_ok=True)
        save(self.file(number), state, extra)
        for old in self.numbers()[:-2]:
            self.file(old).unlink(missing_ok=True)

    def load(self, template: Any, *, finite: Collection[str] | None = None) -> Loaded:
        """Read the newest checkpoint as `load` does; a refusal says which older one to fall back on."""
        numbers = self.numbers()
        if not numbers:
            raise CheckpointError(f"there is no checkpoint in {self.path}")
        try:
            return load(self.file(numbers[-1]), template, finite=finite)
        except CheckpointError as error:
            if len(numbers) < 2:
                raise
            newest, previous = (self.file(number).name for number in (numbers[-1], numbers[-2]))
            sentence = f"{error}; delete {newest} to go back to the previous one, {previous}"
            raise CheckpointError(sentence) from error

    def clean(self) -> None:
        """Remove what a killed process left half written."""
        for leftover in self.path.glob(".*.partial"):
            leftover.unlink(missing_ok=True)


def _damage(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"it is truncated, damaged or not a checkpoint ({reason})"


def _is_finite(leaf: Any) -> bool:
    """Whether no number is NaN or infinite; NumPy, on the array's own memory, is several times faster than
    XLA."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return True
    numbers = np.asarray(leaf).reshape(-1)
    return all(np.isfinite(numbers[i : i + _CHUNK]).all() for i in range(0, len(numbers), _CHUNK))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(state: Any) -> dict[str, Any]:
    """Leaves by dotted path, in the pytree's order."""
    named = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "leaf"
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            raise TypeError(f"a checkpoint holds arrays only, but {name} is a {type(leaf).__name__}")
        if name in named:
            raise ValueError(f"two leaves are both named {name}")
        named[name] = leaf
    return named


def _write_leaf(archive: zipfile.ZipFile, pool: ThreadPoolExecutor, name: str, leaf: Any) -> dict[str, Any]:
    """Add one leaf as `name.npy`; returns its entry in the structure."""
    kind = "jax" if isinstance(leaf, jax.Array) else "numpy"
    if _is_key(leaf):
        kind, leaf = f"key:{jax.random.key_impl(leaf)}", jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"a checkpoint cannot hold the type {array.dtype} of {name}")
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    digest = pool.submit(hashlib.sha256, data)  # while the data are written
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        header = np.lib.format.header_data_from_array_1_0(np.empty(0, array.dtype)) | {"shape": array.shape}
        np.lib.format.write_array_header_1_0(member, header)
        for start in range(0, len(data), _CHUNK):
            member.write(data[start : start + _CHUNK])
    about = {"name": name, "kind": kind, "dtype": array.dtype.str, "shape": array.shape}
    return about | {"sha256": digest.result().hexdigest()}


def _load(path: Path, template: Any, finite: Collection[str] | None) -> Loaded:
    expected = {name: _expect(leaf) for name, leaf in _named_leaves(template).items()}
    allowed = sum(leaf.limit for leaf in expected.values()) + _STRUCTURE_LIMIT
    if (size := path.stat().st_size) > allowed:
        raise CheckpointError(f"it has {size} bytes, more than the {allowed} its contents can need")
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise CheckpointError("it has two members of one name")
        structure = _read_structure(archive, members)
        entries = {entry["name"]: entry for entry in structure["leaves"]}
        _compare_names(set(entries), set(expected))
        if set(members) != {f"{name}.npy" for name in expected} | {STRUCTURE}:
            raise CheckpointError("its members are not those it lists")
        leaves = [
            _read_leaf(archive, members[f"{name}.npy"], entries[name], leaf)
            for name, leaf in expected.items()
        ]
    state = jax.tree.unflatten(jax.tree.structure(template), leaves)
    if bad := nonfinite(state, finite):
        raise CheckpointError(f"{bad.name}{list(bad.index)} is not a finite number")
    return Loaded(state, structure["extra"])


def _expect(leaf: Any) -> _Expected:
    if _is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, leaf)
        return _Expected(data.shape, np.dtype(data.dtype), True)
    return _Expected(tuple(leaf.shape), np.dtype(leaf.dtype), False)


def _read_structure(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> dict[str, Any]:
    if STRUCTURE not in members:
        raise CheckpointError("it is not a checkpoint of this library")
    _check_stored(members[STRUCTURE], _STRUCTURE_LIMIT)
    structure = json.loads(archive.read(STRUCTURE))
    if not isinstance(structure, dict) or structure.get("kind") != KIND:
        raise CheckpointError("it is not a checkpoint of this library")
    if structure["format"] != FORMAT:
        found = f"format {structure['format']} (written by briee {structure.get('briee', 'unknown')})"
        raise CheckpointError(f"it has {found}, this version reads format {FORMAT}")
    if not isinstance(structure["extra"], dict):
        raise CheckpointError("its extra part is not a JSON object")
    return structure


def _compare_names(found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        differences = (("lacks", sorted(wanted - found)), ("has", sorted(found - wanted)))
        says = " and ".join(f"{verb} {', '.join(names[:3])}" for verb, names in differences if names)
        raise CheckpointError(f"it belongs to another algorithm or configuration: it {says}")


def _check_stored(info: zipfile.ZipInfo, limit: int) -> None:
    """Refuse compressed members, whose contents may be far larger than the file, and oversized ones."""
    plain = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 0x1
    if not plain or info.compress_size != info.file_size:
        raise CheckpointError(f"its member {info.filename} is compressed or encrypted")
    if info.file_size > limit:
        raise CheckpointError(
            f"its member {info.filename} has {info.file_size} bytes, expected at most {limit}"
        )


def _read_leaf(archive: zipfile.ZipFile, info: zipfile.ZipInfo, entry: dict, expected: _Expected) -> Any:
    name = entry["name"]
    _check_stored(info, expected.limit)
    with archive.open(info) as member:
        shape, dtype = _read_header(member)
        if not expected.fits(shape, dtype):
            found, wanted = f"{dtype}{list(shape)}", f"{expected.dtype}{list(expected.shape)}"
            raise CheckpointError(f"{name} is {found} where {wanted} is expected")
        array = np.empty(shape, dtype)
        digest = _read_into(member, array.reshape(-1).view(np.uint8).data, name)
    if digest != entry["sha256"]:
        raise CheckpointError(f"the checksum of {name} is wrong, the file is damaged")
    return _restore(array, entry["kind"], expected.is_key, name)


def _read_header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    if np.lib.format.read_magic(member) != (1, 0):
        raise CheckpointError("it holds arrays in an unknown version of NumPy's format")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(member, max_header_size=_HEADER_LIMIT)
    if fortran_order or dtype.hasobject or dtype.kind not in "biufc":
        raise CheckpointError(f"it holds arrays of type {dtype} or order that a checkpoint never has")
    return shape, dtype


def _read_into(member: IO[bytes], target: memoryview, name: str) -> str:
    """Fill `target` and return its SHA-256; the member must end exactly there."""
    digest = hashlib.sha256()
    filled = 0
    while filled < len(target):
        chunk = member.read(min(_CHUNK, len(target) - filled))
        if not chunk:
            raise CheckpointError(f"{name} ends early, the file is truncated")
        target[filled : filled + len(chunk)] = chunk
        digest.update(chunk)
        filled += len(chunk)
    if member.read(1):
        raise CheckpointError(f"{name} has surplus bytes")
    return digest.hexdigest()


def _restore(array: np.ndarray, kind: str, is_key: bool, name: str) -> Any:
    makers: dict[str, Callable[[np.ndarray], Any]] = {"jax": jnp.asarray, "numpy": lambda leaf: leaf}
    if is_key and kind.startswith("key:"):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=kind.removeprefix("key:"))
    if is_key or kind not in makers:
        raise CheckpointError(f"{name} is of kind {kind}, which does not fit")
    return makers[kind](array)
