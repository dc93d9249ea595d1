"""Feature files: what goes out comes back, and what must not be read is refused with nothing executed."""

from __future__ import annotations

import collections
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpa.data.features import read_features, write_features
from bpa.errors import ArgumentError, FileError, NonFiniteError, UnsafeFileError
from bpa.records import FeatureSet


@pytest.fixture
def some(rng: np.random.Generator) -> FeatureSet:
    return FeatureSet(
        rng.normal(size=(12, 5)).astype(np.float32),
        labels=np.repeat(np.arange(4), 3),
        class_names=("ant", "bee", "cat", "dög"),
        cameras=np.arange(12) % 3,
        is_query=np.arange(12) % 2 == 0,
        splits=np.array(["base"] * 6 + ["val"] * 6),
    )


def by_class(rng: np.random.Generator, dtype: str = "f4", width: int = 7) -> dict[int, list[np.ndarray]]:
    """The layout of PT-MAP's files, classes not in numeric order."""
    groups: dict[int, list[np.ndarray]] = collections.defaultdict(list)
    for label in (90, 81, 85):
        for _ in range(4):
            groups[label].append(rng.normal(size=width).astype(dtype))
    return groups


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
def test_what_is_written_is_read(tmp_path: Path, some: FeatureSet, suffix: str) -> None:
    path = tmp_path / f"set{suffix}"
    write_features(path, some)
    back = read_features(path)
    np.testing.assert_array_equal(back.features, some.features)
    for name in ("labels", "cameras", "is_query", "splits"):
        np.testing.assert_array_equal(getattr(back, name), getattr(some, name))
    assert back.class_names == some.class_names
    assert back.source == str(path)
    assert len(back.sha256) == 64
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["f4", "f8", ">f4", "f2"])
def test_ptmap_pickles_of_every_protocol_are_read(
    tmp_path: Path, rng: np.random.Generator, protocol: int, dtype: str
) -> None:
    groups = by_class(rng, dtype)
    path = tmp_path / "output.plk"
    path.write_bytes(pickle.dumps(groups, protocol=protocol))
    back = read_features(path)
    np.testing.assert_array_equal(back.features, np.concatenate(list(groups.values())).astype(np.float32))
    assert back.labels.tolist() == [90] * 4 + [81] * 4 + [85] * 4


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_other_historical_spellings_are_read(tmp_path: Path, rng: np.random.Generator, protocol: int) -> None:
    vectors = rng.normal(size=(6, 3)).astype(np.float32)
    layouts: list[Any] = [
        {"a": vectors[:2], "b": vectors[2:]},  # one matrix a class
        collections.OrderedDict([("a", list(vectors[:2])), ("b", list(vectors[2:]))]),
        {np.int64(0): list(vectors[:2]), np.int64(7): list(vectors[2:])},  # numpy scalars as keys
        {0: [[float(v) for v in row] for row in vectors[:2]], 7: list(vectors[2:])},  # plain lists of floats
        {"features": vectors, "labels": np.array([0, 0, 7, 7, 7, 7])},
        {"features": np.asfortranarray(vectors), "labels": [0, 0, 7, 7, 7, 7]},
    ]
    for layout in layouts:
        path = tmp_path / "x.pkl"
        path.write_bytes(pickle.dumps(layout, protocol=protocol))
        back = read_features(path)
        np.testing.assert_array_equal(back.features, vectors)
        assert np.bincount(np.unique(back.labels, return_inverse=True)[1]).tolist() == [2, 4]


def test_the_old_and_new_names_of_numpy_are_the_same(tmp_path: Path, rng: np.random.Generator) -> None:
    groups = dict(by_class(rng))
    for protocol in (0, 2):
        raw = pickle.dumps(groups, protocol=protocol)
        old = raw.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        assert old != raw or b"numpy.core.multiarray" in raw
        for name, content in (("old", old), ("new", old.replace(b"numpy.core.multi", b"numpy._core.multi"))):
            path = tmp_path / f"{name}.plk"
            path.write_bytes(content)
            np.testing.assert_array_equal(read_features(path).features, np.concatenate(list(groups.values())))


def test_python_2_strings_are_read_as_bytes(tmp_path: Path) -> None:
    # what Python 2 wrote for {'cat': [array([1., 2.], dtype=float32)]} at protocol 2
    values = np.array([1.0, 2.0], dtype="<f4").tobytes()
    raw = (
        b"\x80\x02}q\x00U\x03catq\x01]q\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05"
        b"U\x01bq\x06\x87q\x07Rq\x08(K\x01K\x02\x85q\tcnumpy\ndtype\nq\nU\x02f4q\x0bK\x00K\x01\x87q\x0cRq\r(K\x03U\x01<q\x0e"
        b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0fb\x89U\x08" + values + b"q\x10tq\x11bas."
    )
    path = tmp_path / "old.plk"
    path.write_bytes(raw)
    back = read_features(path)
    assert back.features.tolist() == [[1.0, 2.0]]
    assert back.class_names == ("cat",)


def test_npy_takes_its_labels_from_a_second_file(tmp_path: Path, rng: np.random.Generator) -> None:
    np.save(tmp_path / "x.npy", rng.random((3, 2)))
    np.save(tmp_path / "y.npy", np.array([4, 4, 9]))
    (tmp_path / "y.txt").write_text("4\n4\n9\n")
    (tmp_path / "names.csv").write_text("cat\ncat\ndog\n")
    assert read_features(tmp_path / "x.npy").labels is None
    assert read_features(tmp_path / "x.npy", labels=tmp_path / "y.npy").labels.tolist() == [4, 4, 9]
    assert read_features(tmp_path / "x.npy", labels=tmp_path / "y.txt").labels.tolist() == [4, 4, 9]
    named = read_features(tmp_path / "x.npy", labels=tmp_path / "names.csv")
    assert named.labels.tolist() == [0, 0, 1]
    assert named.class_names == ("cat", "dog")


def test_npz_fields_can_be_named(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.random((4, 3))
    np.savez(tmp_path / "a.npz", embeddings=x, identity=np.array([1, 1, 2, 2]), other=rng.random((4, 9)))
    with pytest.raises(FileError, match="embeddings, identity, other"):
        read_features(tmp_path / "a.npz")
    back = read_features(tmp_path / "a.npz", key="embeddings", labels="identity")
    np.testing.assert_array_equal(back.features, x.astype(np.float32))
    assert back.labels.tolist() == [1, 1, 2, 2]
    with pytest.raises(FileError, match="neither a file nor a field"):
        read_features(tmp_path / "a.npz", key="embeddings", labels="ids")
    np.savez(tmp_path / "b.npz", vectors=x, y=np.array([1, 1, 2, 2]))
    assert read_features(tmp_path / "b.npz").labels.tolist() == [1, 1, 2, 2]


def test_images_alone_become_pixels_and_splits_follow_their_class(tmp_path: Path) -> None:
    images = np.arange(2 * 4, dtype=np.uint8).reshape(2, 2, 2) * 30
    np.savez(tmp_path / "i.npz", images=images, labels=[1, 0], class_split=np.array(["val", "base"]))
    back = read_features(tmp_path / "i.npz")
    np.testing.assert_allclose(back.features, images.reshape(2, 4) / 255.0, rtol=1e-6)
    assert back.splits.tolist() == ["base", "val"]
    assert len(back.of_split("val")) == 1
    with pytest.raises(ArgumentError, match="it has base, val"):
        back.of_split("test")


def test_wide_parquet_tables_are_read_in_column_order(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"b": [1.0, 2.0], "a": [3.0, 4.0], "label": ["x", "y"]}), tmp_path / "w.parquet")
    back = read_features(tmp_path / "w.parquet")
    assert back.features.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert back.class_names == ("x", "y")
    pq.write_table(pa.table({"v": [[1.0, 2.0], [3.0]], "label": [0, 1]}), tmp_path / "r.parquet")
    with pytest.raises(FileError, match="differ in width, from 1 to 2"):
        read_features(tmp_path / "r.parquet")


# ---------------------------------------------------------------------- refusals


class Payload:
    """Unpickled by Python, this creates a file."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.target,))


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_by_name_and_executes_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "executed"
    raw = pickle.dumps({0: [Payload(mark)]}, protocol=protocol)
    path = tmp_path / "evil.plk"
    path.write_bytes(raw)
    with pytest.raises(UnsafeFileError, match=rf"'{os.mkdir.__module__}\.mkdir'"):
        read_features(path)
    assert not mark.exists()
    pickle.loads(raw)  # the file was a real attack: Python's own reader falls for it
    assert mark.exists()


ATTACKS = {
    "eval": b"cbuiltins\neval\n(S'1'\ntR.",
    "old instance": b"(S'true'\nios\nsystem\n.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "getattr": b"cbuiltins\ngetattr\n(cbuiltins\nlist\nS'append'\ntR.",
    "copyreg": b"ccopy_reg\n_reconstructor\n(cnumpy\nndarray\nc__builtin__\nobject\nNtR.",
    "numpy loader": b"cnumpy\nload\n(S'x.npy'\ntR.",
    "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__class__\x93.",
    "instance by class": b"\x80\x02ccollections\ndefaultdict\n)\x81.",
    "persistent id": b"P1\n.",
    "extension": b"\x80\x02\x82\x01.",
    "list of a range": b"c__builtin__\nlist\n(cbuiltins\nrange\n(K\x05tRtR.",
    "codec with effects": b"c_codecs\nencode\n(Vx\nVzlib\ntR.",
    "object array": b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
    "out of band buffer": b"\x80\x05\x97.",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_every_other_door_is_shut(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(ATTACKS[name])
    with pytest.raises(UnsafeFileError, match="refused"):
        read_features(path)


def test_admitted_names_cannot_be_made_to_allocate(tmp_path: Path) -> None:
    # numpy's own _reconstruct would try to allocate 8 TB here
    huge = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"\x8a\x06\x00\x00\x00\x00\x00\x01\x85U\x01d\x87R."
    )
    path = tmp_path / "x.pkl"
    path.write_bytes(huge)
    with pytest.raises(FileError, match="dictionary"):
        read_features(path)
    lying = pickle.dumps({0: [np.zeros(2, "f4")]}, protocol=2).replace(b"K\x02\x85", b"M\xff\xff\x85")
    path.write_bytes(lying)
    with pytest.raises(FileError, match=r"shape \(65535,\) needs"):
        read_features(path)


DEEP = {
    "lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "tuples": b"\x80\x02)" + b"\x85" * 1_000_000 + b".",
    "marks": b"\x80\x02" + b"(" * 1_000_000 + b".",
    "tuple as a key": b"\x80\x02})" + b"\x85" * 20 + b"K\x01s.",
}


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_bomb_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "deep.pkl"
    path.write_bytes(DEEP[name])
    with pytest.raises(FileError, match=r"nests more than|dictionary key is"):
        read_features(path)


def test_a_huge_bomb_is_refused_before_it_grows(tmp_path: Path) -> None:
    vector = np.zeros(10_000, dtype=np.float32)
    # one 40 kB vector, then 300,000 two-byte references to it: 12 GB when stacked
    bomb = (
        b"\x80\x02}K\x00](" + pickle.dumps(vector, protocol=2)[2:-1] + b"q\xf0" + b"h\xf0" * 300_000 + b"es."
    )
    assert len(bomb) < 700_000
    path = tmp_path / "huge.plk"
    path.write_bytes(bomb)
    with pytest.raises(UnsafeFileError, match="claim to hold"):
        read_features(path)
    path.write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x.")
    with pytest.raises(FileError, match="truncated"):
        read_features(path)


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bpa.data.formats._layout.MAX_BYTES", 10_000_000)
    with zipfile.ZipFile(tmp_path / "z.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", b"\0" * 20_000_000)
    with pytest.raises(UnsafeFileError, match="unpacks to 20,000,000 bytes"):
        read_features(tmp_path / "z.npz")


@pytest.mark.parametrize("suffix", [".plk", ".npz", ".npy", ".parquet", ".safetensors"])
def test_a_truncated_file_is_refused(
    tmp_path: Path, rng: np.random.Generator, some: FeatureSet, suffix: str
) -> None:
    path = tmp_path / f"x{suffix}"
    if suffix == ".plk":
        path.write_bytes(pickle.dumps(by_class(rng)))
    elif suffix == ".npy":
        np.save(path, some.features)
    else:
        write_features(path, some)
    whole = path.read_bytes()
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"truncated|not a readable"):
            read_features(path)


def outcomes_of_damage(path: Path, whole: bytes, *, step: int = 1) -> set[str]:
    """What reading ends in when one byte at a time is something else; any other error than ours gets through."""
    outcomes = set()
    for position in range(0, len(whole), step):
        for value in (0, 40, 82, 99, 255):
            broken = bytearray(whole)
            broken[position] = value
            path.write_bytes(broken)
            try:
                read_features(path)
                outcomes.add("read")
            except (FileError, NonFiniteError) as error:
                outcomes.add(type(error).__name__)
    return outcomes


def test_a_pickle_broken_anywhere_never_does_worse_than_an_error(tmp_path: Path) -> None:
    whole = pickle.dumps({0: [np.ones(2, "f4")], 1: [np.ones(2, "f4")]}, protocol=4)
    assert {"read", "FileError", "UnsafeFileError"} <= outcomes_of_damage(tmp_path / "x.plk", whole)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_broken_anywhere_never_does_worse_than_an_error(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "whole.npz", features=np.ones((2, 3), "f4"), labels=np.array([0, 1]))
    whole = (tmp_path / "whole.npz").read_bytes()
    assert {"read", "FileError"} <= outcomes_of_damage(tmp_path / "x.npz", whole, step=3)


def test_arrays_nobody_asked_for_are_not_looked_at(tmp_path: Path, rng: np.random.Generator) -> None:
    stranger = np.array([{"an": "object"}], dtype=object)
    np.savez(tmp_path / "x.npz", features=rng.random((2, 3)), notes=stranger)
    assert read_features(tmp_path / "x.npz").features.shape == (2, 3)


def test_object_arrays_are_refused_without_being_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    evil = np.empty(1, dtype=object)
    evil[0] = Payload(mark)
    np.save(tmp_path / "x.npy", evil, allow_pickle=True)
    np.savez(tmp_path / "x.npz", features=evil)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(UnsafeFileError, match="pickled objects"):
            read_features(tmp_path / name)
    assert not mark.exists()


WRONG: dict[str, tuple[Any, str]] = {
    "a list": ([1, 2], "must hold a dictionary"),
    "an empty dictionary": ({}, "must hold a dictionary"),
    "text as rows": ({0: "abc"}, "Class 0 .* list of vectors"),
    "an empty class": ({0: [np.ones(3)], 5: []}, "Class 5 .* list of vectors"),
    "numbers as vectors": ({3: [1.0, 2.0]}, "Class 3 .* vectors of numbers"),
    "another width": ({0: [np.ones(3)], 6: [np.ones(4)]}, "Class 6 .* width 4, .* width 3"),
    "three dimensions": ({2: [np.ones((1, 2, 3))]}, "Class 2 .* vectors of numbers"),
    "features in a list": ({"features": [1.0], "labels": [0]}, "must be an array"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_layouts_are_explained(tmp_path: Path, name: str) -> None:
    value, match = WRONG[name]
    path = tmp_path / "w.pkl"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(FileError, match=match):
        read_features(path)


def test_what_follows_a_pickle_is_not_overlooked(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "two.plk"
    path.write_bytes(pickle.dumps(by_class(rng)) + b"more")
    with pytest.raises(FileError, match="4 bytes after the end"):
        read_features(path)


def test_nan_is_reported_with_its_class(tmp_path: Path, rng: np.random.Generator) -> None:
    groups = by_class(rng)
    groups[81][2][0] = np.nan
    (tmp_path / "n.plk").write_bytes(pickle.dumps(groups))
    with pytest.raises(NonFiniteError, match=r"1 of 12 rows .* row 6 \(class '81'\)"):
        read_features(tmp_path / "n.plk")
    np.savez(tmp_path / "o.npz", features=np.full((2, 2), 1e39), labels=[0, 1], class_names=["cat", "dog"])
    with pytest.raises(NonFiniteError, match="class 'cat'"):
        read_features(tmp_path / "o.npz")


def test_inconsistent_fields_are_explained(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.random((3, 2))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"features": x, "labels": [0, 1]}, "one per row, 3. Got 2"),
        ({"features": x, "labels": [0.5, 1, 2]}, "whole numbers"),
        ({"features": x, "cameras": [1]}, "'cameras'"),
        ({"features": x[0]}, r"shape \(n, d\)"),
        ({"features": np.array([["a", "b"]])}, "real numbers"),
        ({"features": x, "labels": ["a", "b", "c"], "class_names": ["a", "b"]}, "'c' .* class_names"),
        ({"features": x, "labels": [0, 1, 5], "class_split": ["base", "val"]}, "class_split"),
    ]
    for fields, match in cases:
        np.savez(tmp_path / "c.npz", **fields)
        with pytest.raises(FileError, match=match):
            read_features(tmp_path / "c.npz")


def test_unknown_files_are_explained(tmp_path: Path, some: FeatureSet) -> None:
    with pytest.raises(FileError, match="does not exist"):
        read_features(tmp_path / "none.npz")
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(FileError, match=r"\.npz, \.npy"):
        read_features(tmp_path / "x.csv")
    with pytest.raises(FileError, match="write_features writes"):
        write_features(tmp_path / "x.plk", some)
    np.save(tmp_path / "x.npy", some.features)
    with pytest.raises(ArgumentError, match="without a name"):
        read_features(tmp_path / "x.npy", key="features")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, some: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keep.npz"
    write_features(path, some)
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        write_features(path, some.select(np.arange(3)))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["keep.npz"]


def test_the_real_sets_are_read(real_data: Path) -> None:
    path = real_data / "news20_minilm.npz"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    news = read_features(path)
    assert news.features.shape == (3000, 384)
    assert len(news.class_names) == 20
