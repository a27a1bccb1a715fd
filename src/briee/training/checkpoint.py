"""Checkpoints: the arrays of a pytree in one file, written atomically and read without running code.

A checkpoint is an uncompressed `.npz`: one `.npy` member per leaf, named by its path in the pytree, and the
member `checkpoint.json` with the format version, the shape, type and SHA-256 of each leaf, and a small JSON
object of the caller's. Reading needs a template with the expected structure. A file that differs from it is
refused before any array is allocated. Nothing is unpickled or unpacked to disk. The search for NaN and
infinity is here too, because it names the leaves in the same way.
"""

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import briee
from briee.errors import RunError
from briee.training.directory import replacing

FORMAT = 1
KIND = "briee checkpoint"
STRUCTURE = "checkpoint.json"
_STRUCTURE_LIMIT = 16 * 2**20
_HEADER_LIMIT = 4096
_CHUNK = 4 * 2**20  # numbers, or bytes of a file, handled at a time

T = TypeVar("T")


class CheckpointError(RunError):
    """A checkpoint is missing, damaged, foreign or does not fit; the message is one sentence."""


class Loaded(NamedTuple, Generic[T]):
    """A pytree read from a checkpoint and the JSON object stored beside it."""

    state: T
    extra: dict[str, Any]


class _Expected(NamedTuple):
    """Shape and type of the stored array of one leaf, according to a template."""

    shape: tuple[int, ...]
    dtype: np.dtype
    is_key: bool

    @property
    def limit(self) -> int:
        """Bytes its member may have: the header, and twice the width because of integers (see `fits`)."""
        return 2 * int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize + _HEADER_LIMIT

    def fits(self, shape: tuple[int, ...], dtype: np.dtype) -> bool:
        """Whether an array fits; a traced template has 32-bit integers for NumPy's 64-bit ones."""
        traced = jax.dtypes.canonicalize_dtype(dtype) if dtype.kind in "iu" else dtype
        return shape == self.shape and self.dtype in (dtype, traced)


def save(path: Path, state: Any, extra: dict[str, Any]) -> None:
    """Write the leaves of `state` (arrays or random keys) and the JSON object `extra` to `path`.

    The file gets its name only when it is complete and on disk; an older one stays until then. Equal contents
    give equal bytes, because no time of day is stored.
    """
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with ThreadPoolExecutor(1) as pool:
            leaves = [_write_leaf(archive, pool, *item) for item in _named_leaves(state).items()]
        structure = {"kind": KIND, "format": FORMAT, "briee": briee.__version__, "leaves": leaves}
        archive.writestr(zipfile.ZipInfo(STRUCTURE), json.dumps(structure | {"extra": extra}, indent=1))


def load(path: Path, template: T, *, finite: Collection[str] | None = None) -> Loaded[T]:
    """Read `path` into the structure of `template`, a pytree of arrays or `jax.ShapeDtypeStruct`.

    Raises `CheckpointError` unless every leaf has the template's name, shape and type and the recorded
    checksum, and those named in `finite` (None: all) hold no NaN or infinity. Leaves come back as saved, as
    NumPy or JAX arrays.
    """
    with _one_kind_of_error(path):
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
            if entries.keys() != expected.keys():
                lacks, has = sorted(expected.keys() - entries), sorted(entries.keys() - expected)
                both = (("lacks", lacks), ("has", has))
                says = " and ".join(f"{verb} {', '.join(names[:3])}" for verb, names in both if names)
                raise CheckpointError(f"it belongs to another algorithm or configuration: it {says}")
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


def read_extra(path: Path) -> dict[str, Any]:
    """The JSON object stored beside the arrays, without reading any of them; `CheckpointError` if damaged."""
    with _one_kind_of_error(path), zipfile.ZipFile(path) as archive:
        return _read_structure(archive, {info.filename: info for info in archive.infolist()})["extra"]


@contextlib.contextmanager
def _one_kind_of_error(path: Path) -> Iterator[None]:
    """Turn every error about a file into a `CheckpointError` that names it."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"cannot load {path}: {error}") from None
    except FileNotFoundError:
        raise CheckpointError(f"cannot load {path}: there is no such file") from None
    except Exception as error:  # a hostile file may upset any parser; the caller gets one kind of error
        reason = " ".join(str(error).split()) or type(error).__name__
        sentence = f"it is truncated, damaged or not a checkpoint ({reason})"
        raise CheckpointError(f"cannot load {path}: {sentence}") from error


class Folder:
    """Numbered checkpoints in one directory; the newest and the one before it are kept."""

    def __init__(self, path: Path):
        self.path = path

    def numbers(self) -> list[int]:
        """The numbers of the existing checkpoints, ascending."""
        return sorted(int(file.stem) for file in self.path.glob("*.npz") if file.stem.isdecimal())

    def file(self, number: int) -> Path:
        """The path of checkpoint `number`."""
        return self.path / f"{number:08d}.npz"

    def save(self, number: int, state: Any, extra: dict[str, Any]) -> None:
        """Write checkpoint `number`, then delete all but the newest two."""
        self.path.mkdir(exist_ok=True)
        save(self.file(number), state, extra)
        for old in self.numbers()[:-2]:
            self.file(old).unlink(missing_ok=True)

    def load(self, template: T, *, finite: Collection[str] | None = None) -> Loaded[T]:
        """Read the newest checkpoint as `load` does; the error names an older one to go back to."""
        numbers = self.numbers()
        if not numbers:
            raise CheckpointError(f"there is no checkpoint in {self.path}")
        try:
            return load(self.file(numbers[-1]), template, finite=finite)
        except CheckpointError as error:
            if len(numbers) < 2:
                raise
            newest, previous = (self.file(number).name for number in (numbers[-1], numbers[-2]))
            advice = f"delete {newest} to go back to the previous one, {previous}"
            try:
                load(self.file(numbers[-2]), template, finite=finite)
            except CheckpointError:
                advice = f"the previous one, {previous}, cannot be read either: start anew with --overwrite"
            raise CheckpointError(f"{error}; {advice}") from error


def _write_leaf(archive: zipfile.ZipFile, pool: ThreadPoolExecutor, name: str, leaf: Any) -> dict[str, Any]:
    """Add one leaf as `name.npy` and return its entry in the structure."""
    kind = "jax" if isinstance(leaf, jax.Array) else "numpy"
    if _is_key(leaf):
        kind, leaf = f"key:{jax.random.key_impl(leaf)}", jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"a checkpoint cannot hold the type {array.dtype} of {name}")
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    digest = pool.submit(hashlib.sha256, data)  # while the data is written
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        header = np.lib.format.header_data_from_array_1_0(np.empty(0, array.dtype)) | {"shape": array.shape}
        np.lib.format.write_array_header_1_0(member, header)
        for start in range(0, len(data), _CHUNK):
            member.write(data[start : start + _CHUNK])
    about = {"name": name, "kind": kind, "dtype": array.dtype.str, "shape": array.shape}
    return about | {"sha256": digest.result().hexdigest()}


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


def _check_stored(info: zipfile.ZipInfo, limit: int) -> None:
    """Refuse oversized members and compressed ones, whose contents may be far larger than the file."""
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
    kind = entry["kind"]
    if expected.is_key and kind.startswith("key:"):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=kind.removeprefix("key:"))
    if expected.is_key or kind not in ("jax", "numpy"):
        raise CheckpointError(f"{name} is of kind {kind}, which does not fit")
    return jnp.asarray(array) if kind == "jax" else array


def _read_header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    if np.lib.format.read_magic(member) != (1, 0):
        raise CheckpointError("it holds arrays in an unknown version of NumPy's format")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(member, max_header_size=_HEADER_LIMIT)
    if fortran_order or dtype.hasobject or dtype.kind not in "biufc":
        raise CheckpointError(f"it holds arrays of type {dtype} or order that a checkpoint never has")
    return shape, dtype


def _read_into(member: IO[bytes], target: memoryview, name: str) -> str:
    """Fill `target` and return its SHA-256; the member must end exactly there."""
    digest, filled = hashlib.sha256(), 0
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


@dataclass(frozen=True)
class NonFinite:
    """The position of a NaN or an infinity."""

    name: str
    index: tuple[int, ...]
    shape: tuple[int, ...]


def nonfinite(
    state: Any, names: Collection[str] | None = None, largest: int | None = None
) -> NonFinite | None:
    """The first NaN or infinity, if any, in the leaves among `names` with up to `largest` numbers."""
    for name, leaf in _named_leaves(state).items():
        asked = (names is None or name in names) and (largest is None or leaf.size <= largest)
        if asked and not _is_finite(leaf):
            index = np.argwhere(~np.isfinite(np.asarray(leaf)))[0]
            return NonFinite(name, tuple(map(int, index)), tuple(leaf.shape))
    return None


def finite_names(state: Any) -> frozenset[str]:
    """Names of the leaves without NaN or infinity."""
    return frozenset(name for name, leaf in _named_leaves(state).items() if _is_finite(leaf))


def _is_finite(leaf: Any) -> bool:
    """Whether no number is NaN or infinite."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return True
    numbers = np.asarray(leaf).reshape(-1)  # in place, NumPy is several times faster than XLA
    return all(np.isfinite(numbers[i : i + _CHUNK]).all() for i in range(0, len(numbers), _CHUNK))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(state: Any) -> dict[str, Any]:
    """Leaves by dotted path, in the pytree's order."""
    named = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "leaf"
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
            raise TypeError(f"a checkpoint holds arrays only, but {name} is a {type(leaf).__name__}")
        if name in named:
            raise ValueError(f"two leaves are both named {name}")
        named[name] = leaf
    return named
