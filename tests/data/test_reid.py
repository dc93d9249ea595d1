"""Re-identification sets on disk, from miniature copies of their layouts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bpa.data.reid import (
    extract_cuhk03,
    read_cuhk03,
    read_market1501,
    read_reid_features,
    write_reid_features,
)
from bpa.errors import ArgumentError, FileError
from bpa.metrics.retrieval import evaluate_ranking
from bpa.records import QueryGallery

Image = pytest.importorskip("PIL.Image")

QUERY = ["0001_c1s1_000001_00.jpg", "0002_c2s1_000002_00.jpg", "0005_c3s1_000003_00.jpg"]
GALLERY = [
    "0001_c1s1_000010_01.jpg", "0001_c2s1_000011_01.jpg", "0002_c1s1_000012_01.JPG", "0005_c3s1_000013_01.jpg",
    "0000_c1s1_000014_01.jpg", "0000_c2s1_000015_01.jpg", "0000_c3s1_000016_01.jpg",
    "-1_c1s1_000017_01.jpg", "-1_c3s1_000018_01.jpg",
]  # fmt: skip
TRAIN = [
    "0007_c1s1_000020_01.jpg",
    "0011_c2s1_000021_01.jpg",
    "0007_c3s1_000022_01.jpg",
    "0003_c1s1_000023_01.jpg",
]


@pytest.fixture
def market(tmp_path):
    """Market-1501 in miniature, under a folder whose own name looks like a picture's."""
    root = tmp_path / "x_1_c2" / "Market-1501-v15.09.15"
    for folder, names in (("bounding_box_train", TRAIN), ("query", QUERY), ("bounding_box_test", GALLERY)):
        (root / folder).mkdir(parents=True)
        for name in reversed(names):
            (root / folder / name).write_bytes(b"")
    (root / "bounding_box_test" / "Thumbs.db").write_bytes(b"")
    return root


def test_market_lists_are_sorted_and_read_from_the_base_name(market):
    for place in (market, market.parent):
        found = read_market1501(place)
        assert [image.path.name for image in found.query] == QUERY
        assert [(image.identity, image.camera) for image in found.query] == [(1, 0), (2, 1), (5, 2)]
        assert [image.path.name for image in found.gallery] == sorted(
            n for n in GALLERY if not n.startswith("-1")
        )
        assert sorted({image.identity for image in found.gallery}) == [0, 1, 2, 5]
    assert len(read_market1501(market, keep_junk=True).gallery) == len(GALLERY)


def test_training_identities_are_renumbered_in_order(market):
    train = read_market1501(market).train
    assert [image.path.name for image in train] == sorted(TRAIN)
    assert [image.identity for image in train] == [0, 1, 1, 2]  # 3, 7, 7, 11


def test_a_query_whose_matches_are_all_of_its_camera_is_counted_as_empty(market):
    found = read_market1501(market, keep_junk=True)
    task = found.task(np.eye(len(found.query) + len(found.gallery), dtype=np.float32))
    distances = np.linspace(0, 1, len(task.query) * len(task.gallery)).reshape(len(task.query), -1)
    scores = evaluate_ranking(
        distances,
        task.ids[task.query],
        task.ids[task.gallery],
        task.cameras[task.query],
        task.cameras[task.gallery],
    )
    assert (scores.n_counted, scores.n_empty) == (2, 1)
    with pytest.raises(ArgumentError, match="one row for each"):
        found.task(np.zeros((3, 4), dtype=np.float32))


def test_wrong_market_folders_and_names_are_refused(market, tmp_path):
    with pytest.raises(FileError, match="does not exist"):
        read_market1501(tmp_path / "nowhere")
    with pytest.raises(FileError, match="bounding_box_train"):
        read_market1501(tmp_path)
    for name, sentence in (("picture.jpg", "identity and camera first"), ("0001_c9s1_1_1.jpg", "cameras 1 to 6"),
                           ("1999_c1s1_1_1.jpg", "identities -1 to 1501")):  # fmt: skip
        (market / "query" / name).write_bytes(b"")
        with pytest.raises(FileError, match=sentence):
            read_market1501(market)
        (market / "query" / name).unlink()
    with pytest.warns(UserWarning, match="official one has"):
        read_market1501(market, complete=True)
    for path in (market / "query").iterdir():
        path.unlink()
    with pytest.raises(FileError, match="holds no picture"):
        read_market1501(market)


# name: (identity, list)
CUHK = {
    "1_001_1_01.png": (1, "train"), "1_001_2_06.png": (1, "train"), "1_002_1_01.png": (2, "train"),
    "2_001_1_01.png": (5, "query"), "2_001_2_07.png": (5, "query"),
    "2_001_1_02.png": (5, "gallery"), "2_001_2_06.png": (5, "gallery"), "5_003_1_02.png": (9, "gallery"),
}  # fmt: skip


def cuhk_root(tmp_path, variant="detected", value=0):
    folder = tmp_path / f"images_{variant}"
    folder.mkdir()
    for name in CUHK:
        Image.new("RGB", (2, 3), (value, 0, 0)).save(folder / name)
    return tmp_path


def write_mat(path, names):
    scipy_io = pytest.importorskip("scipy.io")
    cells = np.empty((len(names), 1), dtype=object)
    cells[:, 0] = names
    index = {key: np.array([[i + 1] for i, n in enumerate(names) if CUHK[n][1] == key], dtype=np.uint16)
             for key in ("train", "query", "gallery")}  # fmt: skip
    scipy_io.savemat(path, {
        "filelist": cells,
        "labels": np.array([[CUHK[n][0]] for n in names], dtype=np.uint16),
        "camId": np.array([[int(n.split("_")[2])] for n in names], dtype=np.uint8),
        **{f"{key}_idx": value for key, value in index.items()},
    })  # fmt: skip


def check_cuhk(found, variant):
    assert found.name == f"cuhk03-{variant}"
    assert [i.path.name for i in found.query] == ["2_001_1_01.png", "2_001_2_07.png"]
    assert [(i.identity, i.camera) for i in found.query] == [(5, 0), (5, 1)]
    assert [(i.identity, i.camera) for i in found.gallery] == [(5, 0), (5, 1), (9, 0)]
    assert [i.identity for i in found.train] == [0, 0, 1]
    assert all(f"images_{variant}" in str(i.path) for i in (*found.train, *found.query))


@pytest.mark.parametrize("variant", ["detected", "labeled"])
def test_cuhk03_split_files_of_matlab(tmp_path, variant):
    root = cuhk_root(tmp_path, variant)
    (root / "cuhk03_release").mkdir()
    write_mat(root / "cuhk03_release" / f"cuhk03_new_protocol_config_{variant}.mat", sorted(CUHK))
    check_cuhk(read_cuhk03(root, variant=variant), variant)
    other = "labeled" if variant == "detected" else "detected"
    with pytest.raises(FileError, match=f"splits_new_{other}"):
        read_cuhk03(root, variant=other)
    with pytest.warns(UserWarning, match="official"):
        read_cuhk03(root, variant=variant, complete=True)


def test_cuhk03_json_paths_of_another_machine_are_rebuilt(tmp_path):
    root = cuhk_root(tmp_path)
    lists = {"train": [], "query": [], "gallery": []}
    for name, (identity, where) in CUHK.items():
        lists[where].append(
            [f"/home/somebody/data\\images_detected/{name}", identity, int(name.split("_")[2]) - 1]
        )
    (root / "splits_new_detected.json").write_text(json.dumps([lists]))
    check_cuhk(read_cuhk03(root), "detected")
    (root / "images_detected" / "2_001_1_01.png").unlink()
    with pytest.raises(FileError, match="does not hold it"):
        read_cuhk03(root)


def test_cuhk03_market_layout(tmp_path):
    for folder, where in (
        ("bounding_box_train", "train"),
        ("query", "query"),
        ("bounding_box_test", "gallery"),
    ):
        place = tmp_path / "labeled" / folder
        place.mkdir(parents=True)
        for name, (identity, part) in CUHK.items():
            if part == where:
                (place / f"{identity:04d}_c{name.split('_')[2]}_{name.split('_')[3]}").write_bytes(b"")
    found = read_cuhk03(tmp_path, variant="labeled")
    assert [(i.identity, i.camera) for i in found.query] == [(5, 0), (5, 1)]
    assert len(found.gallery) == 3


def test_the_old_cuhk03_protocol_and_damaged_splits_are_refused(tmp_path):
    root = cuhk_root(tmp_path)
    (root / "splits_classic_detected.json").write_text("[]")
    with pytest.raises(FileError, match="old protocol"):
        read_cuhk03(root)
    (root / "splits_new_detected.json").write_text(json.dumps([{}] * 20))
    with pytest.raises(FileError, match="twenty splits"):
        read_cuhk03(root)
    for text in ("not json", "[{}]", '[{"train": [["a.png", 1, 0]], "query": [], "gallery": []}]'):
        (root / "splits_new_detected.json").write_text(text)
        with pytest.raises(FileError):
            read_cuhk03(root)
    wrong_camera = {"train": [["1_001_1_01.png", 1, 1]], "query": [], "gallery": []}
    (root / "splits_new_detected.json").write_text(json.dumps([wrong_camera]))
    with pytest.raises(FileError, match="its name says view 1"):
        read_cuhk03(root)
    with pytest.raises(ArgumentError, match="'variant'"):
        read_cuhk03(root, variant="both")


def test_raw_cuhk03_archive_is_transposed_and_empty_cells_are_left_out(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    pictures = {(0, 0, 0): rng.integers(0, 255, (7, 4, 3), dtype=np.uint8),
                (0, 1, 5): rng.integers(0, 255, (9, 5, 3), dtype=np.uint8)}  # fmt: skip
    path = tmp_path / "cuhk-03.mat"
    with h5py.File(path, "w") as file:
        reference = h5py.special_dtype(ref=h5py.Reference)
        pairs = file.create_dataset("detected", (1, 1), dtype=reference)
        cells = file.create_dataset("#refs#/pair", (10, 2), dtype=reference)
        empty = file.create_dataset("#refs#/empty", data=np.zeros((2,), dtype=np.uint64))
        for person in range(2):
            for number in range(10):
                cells[number, person] = empty.ref
        for (_, person, number), pixels in pictures.items():
            cells[number, person] = file.create_dataset(f"#refs#/{person}_{number}", data=pixels.T).ref
        pairs[0, 0] = cells.ref
    assert extract_cuhk03(path, tmp_path) == 2
    folder = tmp_path / "images_detected"
    assert sorted(p.name for p in folder.iterdir()) == ["1_001_1_01.png", "1_002_2_06.png"]
    np.testing.assert_array_equal(np.asarray(Image.open(folder / "1_001_1_01.png")), pictures[0, 0, 0])
    with pytest.raises(FileError, match="'labeled'"):
        extract_cuhk03(path, tmp_path, variant="labeled")
    (tmp_path / "text.mat").write_text("nothing")
    with pytest.raises(FileError, match="cannot be read"):
        extract_cuhk03(tmp_path / "text.mat", tmp_path)


def test_feature_files_round_trip_and_name_their_set(tmp_path, rng):
    task = QueryGallery(
        rng.normal(size=(6, 3)).astype(np.float32), np.array([1, 4]), np.array([0, 2, 3, 5]),
        np.array([1, 1, 2, 2, 2, -1]), np.array([0, 1, 0, 1, 1, 0]),
    )  # fmt: skip
    path = write_reid_features(tmp_path / "a.npz", task, dataset="market1501")
    again, name = read_reid_features(path)
    assert name == again.source == "market1501"
    for field in ("features", "query", "gallery", "ids", "cameras"):
        np.testing.assert_array_equal(getattr(again, field), getattr(task, field))
    everyone = QueryGallery(task.features, np.arange(6), np.arange(6), task.ids)
    again, name = read_reid_features(write_reid_features(tmp_path / "b.npz", everyone))
    assert name is None
    assert again.cameras is None
    np.testing.assert_array_equal(again.self_index, np.arange(6))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"ids": np.arange(3)}, "no array 'features'"),
        ({"features": np.zeros((3, 2))}, "no identities"),
        ({"features": np.zeros((3, 2)), "ids": np.arange(4)}, "'ids'"),
        ({"features": np.zeros((3, 2)), "ids": np.zeros(3)}, "integers"),
        ({"features": np.full((3, 2), np.nan), "ids": np.arange(3)}, "3 feature rows"),
        ({"features": np.zeros((3, 2)), "ids": np.arange(3), "is_query": np.ones(3, bool)}, "'is_query'"),
        ({"features": np.array([[object()]])}, "pickled objects"),
    ],
)
def test_feature_files_that_cannot_be_used_are_refused(tmp_path, arrays, sentence):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FileError, match=sentence):
        read_reid_features(tmp_path / "a.npz")
