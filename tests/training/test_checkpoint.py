"""Checkpoints: exact round trips, atomic replacement, and refusal of everything damaged or hostile."""

import hashlib
import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from briee.training import checkpoint
from briee.training.checkpoint import CheckpointError, Folder, load, save


class State(eqx.Module):
    key: jax.Array
    weights: jax.Array
    levels: tuple[jax.Array, ...]
    episodes: np.ndarray
    flags: jax.Array


def make_state(seed: int = 0) -> State:
    key = jax.random.key(seed)
    weights = jax.random.normal(key, (3, 4))
    return State(
        key, weights, (jnp.arange(5), jnp.zeros((2, 0))), np.asarray(2**40 + seed), jnp.asarray([True, False])
    )


def leaves(state) -> list[np.ndarray]:
    data = lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf  # noqa: E731
    return [np.asarray(data(leaf)) for leaf in jax.tree.leaves(state)]


def assert_same(a, b) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(leaves(a), leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def rewrite(path: Path, change) -> None:
    """Apply `change(members: dict[str, bytes], structure: dict)` to a checkpoint, keeping its zip valid."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    structure = json.loads(members[checkpoint.STRUCTURE])
    change(members, structure)
    members[checkpoint.STRUCTURE] = json.dumps(structure).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def replace_leaf(name: str, array: np.ndarray):
    """A change that swaps one leaf and makes the listed checksum agree, as an attacker would."""

    def change(members, structure):
        members[f"{name}.npy"] = npy(array)
        entry = next(entry for entry in structure["leaves"] if entry["name"] == name)
        entry |= {"sha256": hashlib.sha256(array.tobytes()).hexdigest()}

    return change


@pytest.mark.parametrize("trace", [False, True])
def test_round_trip_is_exact_and_keeps_kinds(tmp_path, trace):
    state = make_state()
    save(tmp_path / "a.npz", state, {"note": "x"})
    template = jax.eval_shape(make_state) if trace else make_state(1)
    loaded = load(tmp_path / "a.npz", template)
    assert loaded.extra == {"note": "x"}
    assert_same(state, loaded.state)
    assert isinstance(loaded.state.episodes, np.ndarray)
    assert isinstance(loaded.state.weights, jax.Array)
    assert jax.random.uniform(loaded.state.key) == jax.random.uniform(state.key)


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int8, np.int64, np.uint32, np.bool_, np.complex64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
def test_any_numpy_array_round_trips(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("any") / "a.npz"
    save(path, {"x": array}, {})
    loaded = load(path, {"x": array}, finite=()).state["x"]
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, array)


def test_numpy_reads_the_arrays_without_this_library(tmp_path):
    state = make_state()
    save(tmp_path / "a.npz", state, {})
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["weights"], state.weights)


def test_equal_contents_give_equal_bytes(tmp_path, monkeypatch):
    save(tmp_path / "a.npz", make_state(), {"n": 1})
    monkeypatch.setattr("time.time", lambda: 1e9)
    save(tmp_path / "b.npz", make_state(), {"n": 1})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_only_arrays_can_be_saved(tmp_path):
    with pytest.raises(TypeError, match=r"arrays only, but n is a int"):
        save(tmp_path / "a.npz", {"n": 3}, {})
    with pytest.raises(TypeError, match="cannot hold the type object"):
        save(tmp_path / "a.npz", {"n": np.asarray([None])}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    save(path, make_state(), {"n": 1})

    def disk_full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        save(path, make_state(1), {"n": 2})
    assert os.listdir(tmp_path) == ["a.npz"]
    assert load(path, make_state()).extra == {"n": 1}


def test_folder_keeps_two_and_offers_the_previous(tmp_path):
    folder = Folder(tmp_path / "checkpoint")
    for number in range(4):
        folder.save(number, make_state(number), {"n": number})
    assert folder.numbers() == [2, 3]
    assert folder.load(make_state()).extra == {"n": 3}
    folder.file(3).write_bytes(folder.file(3).read_bytes()[:-100])
    with pytest.raises(
        CheckpointError, match=r"delete 00000003.npz to go back to the previous one, 00000002.npz"
    ):
        folder.load(make_state())
    folder.file(2).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"00000002.npz, cannot be read either: start anew with --over"):
        folder.load(make_state())
    (tmp_path / "checkpoint" / ".00000004.npz.17.partial").write_bytes(b"half")
    assert folder.numbers() == [2, 3]


def test_template_mismatch_is_named(tmp_path):
    path = tmp_path / "a.npz"
    save(path, {"w": jnp.zeros((2, 3)), "b": jnp.zeros(2)}, {})
    with pytest.raises(CheckpointError, match=r"w is float32\[2, 3\] where float32\[2, 4\] is expected"):
        load(path, {"w": jnp.zeros((2, 4)), "b": jnp.zeros(2)})
    with pytest.raises(CheckpointError, match=r"w is float32\[2, 3\] where int32\[2, 3\] is expected"):
        load(path, {"w": jnp.zeros((2, 3), jnp.int32), "b": jnp.zeros(2)})
    with pytest.raises(CheckpointError, match="it lacks c and has b"):
        load(path, {"w": jnp.zeros((2, 3)), "c": jnp.zeros(2)})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda members, structure: structure.update(format=99), "it has format 99"),
        (lambda members, structure: structure.update(kind="other"), "not a checkpoint of this library"),
        (lambda members, structure: structure.update(extra=[]), "not a JSON object"),
        (lambda members, structure: structure["leaves"].pop(), "it lacks flags"),
        (lambda members, structure: members.pop("flags.npy"), "members are not those"),
        (lambda members, structure: members.update({"../../evil.npy": b"x"}), "members are not those"),
        (
            replace_leaf("weights", np.full((3, 4), np.nan, np.float32)),
            r"weights\[0, 0\] is not a finite number",
        ),
        (replace_leaf("weights", np.zeros((3, 4))), r"weights is float64\[3, 4\]"),
        (replace_leaf("weights", np.zeros((4, 3), np.float32)), r"weights is float32\[4, 3\]"),
        (
            replace_leaf("weights", np.zeros((3, 4), np.float32).T.copy().T),
            "order that a checkpoint never has",
        ),
    ],
)
def test_forged_contents_are_refused(tmp_path, change, sentence):
    path = tmp_path / "a.npz"
    save(path, make_state(), {})
    rewrite(path, change)
    with pytest.raises(CheckpointError, match=sentence):
        load(path, make_state())


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_hostile_files_run_no_code_and_allocate_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, state = tmp_path / "a.npz", make_state()
    refused = lambda: pytest.raises(CheckpointError)  # noqa: E731

    def objects(members, structure):
        members["weights.npy"] = npy(np.asarray([Bomb()]), allow_pickle=True)

    def huge_shape(members, structure):
        header = {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**20)}
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, header)
        members["weights.npy"] = buffer.getvalue()

    for change in (objects, huge_shape):
        save(path, state, {})
        rewrite(path, change)
        with refused():
            load(path, state)

    path.write_bytes(pickle.dumps(Bomb()))
    with refused():
        load(path, state)

    save(path, state, {})  # a zip bomb: members that inflate a thousandfold
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data if name == checkpoint.STRUCTURE else bytes(30_000_000))
    with pytest.raises(CheckpointError, match="compressed or encrypted"):
        load(path, state)
    assert not (tmp_path / "exploded").exists()


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Flip bytes, cut, repeat or overwrite a stretch."""
    changed = bytearray(data)
    kind = rng.randrange(4)
    if kind == 0:
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del changed[rng.randrange(len(data)) :]
    else:
        start = rng.randrange(len(data))
        stop = min(len(data), start + rng.randint(1, 64))
        changed[start:stop] = rng.randbytes(stop - start) if kind == 2 else changed[start:stop] * 2
    return bytes(changed)


@pytest.mark.parametrize("count", [250, pytest.param(5000, marks=pytest.mark.slow)])
def test_mutated_checkpoints_are_refused_or_loaded_correctly(tmp_path, count):
    path, state, extra = tmp_path / "a.npz", make_state(), {"iteration": 7}
    save(path, state, extra)
    whole, rng, refused = path.read_bytes(), random.Random(0), []
    for _ in range(count):
        path.write_bytes(mutate(rng, whole))
        try:
            loaded = load(path, state)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            assert_same(state, loaded.state)
            assert loaded.extra == extra
    assert not [sentence for sentence in refused if "\n" in sentence]
    assert len(refused) > 0.6 * count
