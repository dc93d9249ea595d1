"""Every mistake a user can make on the command line is one sentence with exit code 2, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bpa.cli.main import main
from bpa.data.features import write_features
from bpa.records import FeatureSet


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with good and bad files, entered."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 8)).astype(np.float32)
    labels = np.repeat(np.arange(6, dtype=np.int64), 10)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "short.npy", labels[:7])
    np.save(tmp_path / "flat.npy", x[:, 0])
    np.save(tmp_path / "empty.npy", x[:0])
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "nan.npy", np.where(np.arange(480).reshape(60, 8) == 13, np.nan, x))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "two.npz", a=x, b=x)
    write_features(tmp_path / "good.npz", FeatureSet(x, labels))
    (tmp_path / "torn.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:100])
    (tmp_path / "torn.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:200])
    (tmp_path / "evil.pkl").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    (tmp_path / "text.csv").write_text("1,2\n")
    (tmp_path / "bad.toml").write_text("[fewshot\n")
    (tmp_path / "unknown.toml").write_text("[fewshott]\ntasks = 3\n")
    (tmp_path / "flag.toml").write_text("[transform]\nregg = 3\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


MISTAKES = {
    "no such file": ("transform nope.npy -o w.npy", "nope.npy"),
    "a folder for a file": ("transform folder -o w.npy", "folder"),
    "a suffix nobody knows": ("transform text.csv -o w.npy", "text.csv"),
    "a torn npy": ("transform torn.npy -o w.npy", "torn.npy"),
    "a torn npz": ("transform torn.npz -o w.npy", "torn.npz"),
    "pickled objects in npy": ("transform objects.npy -o w.npy", "objects.npy"),
    "a pickle that would run": ("convert evil.pkl safe.npz", "evil.pkl"),
    "an array of words": ("transform words.npy -o w.npy", "words.npy"),
    "a vector": ("transform flat.npy -o w.npy", "flat.npy"),
    "no rows": ("transform empty.npy -o w.npy", "empty.npy"),
    "NaN": ("transform nan.npy -o w.npy", "NaN"),
    "a wrong key": ("transform two.npz --key c -o w.npy", "c"),
    "an ambiguous file": ("transform two.npz -o w.npy", "two.npz"),
    "wrong labels": ("cluster x.npy --k 3 --labels nowhere", "nowhere"),
    "labels of another length": ("cluster x.npy --k 3 --labels short.npy", "7"),
    "no labels where they are needed": ("fewshot x.npy", "labels"),
    "too many ways": ("fewshot good.npz --way 50 --tasks 5 --protocol balanced", "50"),
    "an unknown verb": ("transfrom x.npy", "transform"),
    "an unknown flag": ("transform x.npy -o w.npy --regg 1", "--regg"),
    "a missing argument": ("transform", "requires"),
    "a missing output": ("transform x.npy", "--output"),
    "a negative reg": ("transform x.npy -o w.npy --reg -1", "--reg"),
    "a reg that is no number": ("transform x.npy -o w.npy --reg much", "much"),
    "a reg of zero": ("transform x.npy -o w.npy --reg 0", "--reg"),
    "two regs where one is needed": ("transform x.npy -o w.npy --reg 0.1 0.2", "one value"),
    "no sweeps": ("transform x.npy -o w.npy --solver sweeps:0", "sweeps:0"),
    "two solvers where one is needed": ("transform x.npy -o w.npy --solver sweeps:5 converged", "one value"),
    "a solver that is none": ("transform x.npy -o w.npy --solver 5", "sweeps:N"),
    "half a seed": ("cluster x.npy --k 3 --seed 0.5", "0.5"),
    "half a sweep": ("transform x.npy -o w.npy --solver sweeps:1.5", "sweeps:1.5"),
    "auto where nothing has the rule": (
        "transform x.npy -o w.npy --transform softmax --reg auto",
        "not for softmax",
    ),
    "a weight that changes nothing": (
        "transform x.npy -o w.npy --transform unit --reg 0.3",
        "'reg' would change nothing",
    ),
    "a solver that changes nothing": (
        "fewshot good.npz --transform cosine --solver converged",
        "'solver' would change",
    ),
    "entries of no graph": ("transform x.npy -o w.npy --k 5", "--want top-k"),
    "items nobody asked distances of": ("transform x.npy -o w.npy --items 0 1", "--want distances"),
    "rows for no k-means": (
        "cluster good.npz --k 3 --host bpa-smooth --transform cosine",
        "rows for k-means",
    ),
    "a solver no clusterer has": (
        "cluster good.npz --k 3 --host bpa-smooth --solver converged",
        "'solver' would change",
    ),
    "neighbours of no re-ranking": ("retrieve good.npz --k1 5", "--k1 is for --host k-reciprocal"),
    "a transform no ranker sees": (
        "retrieve good.npz --host csls --transform cosine",
        "--transform is for --host",
    ),
    "a weight no ranker has": ("retrieve good.npz --host csls --reg 0.1", "'reg' would change nothing"),
    "rows that are not W's": (
        "retrieve good.npz --transform cosine --rows paper",
        "--rows is for --transform bpa",
    ),
    "a protocol of nothing": (
        "retrieve good.npz --transform cosine --protocol frozen",
        "--protocol is for --host nearest",
    ),
    "a variant with a weight": ("fewshot good.npz --variant paper --paper", "Leave out --prior"),
    "a setting nobody knows": ("transform x.npy -o w.npy --transform pca:40", "NAME:setting=value"),
    "a negative seed": ("cluster x.npy --k 3 --seed -1", "--seed"),
    "an unknown transform": ("transform x.npy -o w.npy --transform magic", "magic"),
    "an unknown device": ("transform x.npy -o w.npy --device tpu9", "tpu9"),
    "a device that is not here": ("transform x.npy -o w.npy --device xpu", "xpu"),
    "an unknown dtype": ("transform x.npy -o w.npy --dtype float8", "float8"),
    "a budget in no unit": ("transform x.npy -o w.npy --budget 3XB", "3XB"),
    "a budget too small": ("transform x.npy -o w.npy --budget 10KB", "top-k"),
    "more neighbours than items": ("transform x.npy -o g.npz --want top-k --k 60", "59"),
    "a graph in a file that cannot hold it": ("transform x.npy -o g.npy --want top-k", ".npz"),
    "distances of nobody": ("transform x.npy -o d.npy --want distances", "--items"),
    "distances of an item that is not there": ("transform x.npy -o d.npy --want distances --items 60", "59"),
    "an output of unknown kind": ("transform x.npy -o w.txt", "w.txt"),
    "an output below a file": ("transform x.npy -o file/w.npy", "file"),
    "an output nobody may write": ("transform x.npy -o /proc/w.npy", "/proc/w.npy"),
    "blocks nobody may write": ("transform x.npy -o /proc/w.npy --want blocks", "/proc/w.npy"),
    "runs below a file": (
        "fewshot good.npz --tasks 5 --protocol balanced --way 3 --query 3 --out file/runs",
        "file",
    ),
    "a report of nothing": ("report runs", "no finished run"),
    "a report of no folder": ("report nowhere", "nowhere"),
    "an unknown study": ("study magic", "magic"),
    "a study without its features": ("study retrieval-rows", "feature file"),
    "a flag a study cannot honour": ("study sphere --shot 1", "cannot honour --shot"),
    "features a study does not read": ("study sphere good.npz", "makes its own data"),
    "labels of no features": ("study sphere --labels y.npy", "--labels"),
    "an unknown ranking": ("retrieve good.npz --host magic", "magic"),
    "an unknown comparison of rows": ("retrieve good.npz --rows long", "long"),
    "cameras that are not there": ("retrieve good.npz --deleted camera", "no cameras"),
    "no configuration": ("--config nope.toml transform x.npy -o w.npy", "nope.toml"),
    "a configuration without a name": ("transform x.npy -o w.npy --config", "--config"),
    "a configuration that is no TOML": ("--config bad.toml fewshot good.npz", "bad.toml"),
    "a configuration of an unknown verb": ("--config unknown.toml fewshot good.npz", "fewshott"),
    "a configuration of an unknown flag": ("--config flag.toml transform x.npy -o w.npy", "regg"),
    "clusters of one item": ("cluster x.npy --k 100", "100"),
    "an existing target": ("convert x.npy good.npz", "--overwrite"),
}


@pytest.mark.parametrize(("line", "named"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_sentence_and_exit_code_2(
    place: Path, capsys: pytest.CaptureFixture[str], line: str, named: str
) -> None:
    before = {path.name for path in place.iterdir()}
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("bpa: ")
    assert said.err.count("\n") == 1, said.err
    assert named in said.err
    assert "Traceback" not in said.err
    assert 20 < len(said.err) < 500, said.err
    assert {path.name for path in place.iterdir()} - before <= {".lock"}, (
        "something half-written was left behind"
    )


def test_a_full_disk_is_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bpa.runs import store

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    for line in (
        "transform x.npy -o w.npy",
        "fewshot good.npz --tasks 5 --protocol balanced --way 3 --query 3 --out runs",
    ):
        assert main(line.split()) == 2
        said = capsys.readouterr().err
        assert "No space left on device" in said
        assert said.count("\n") == 1
    assert not (place / "w.npy").exists()


def run_blocked(package: str, line: str, place: Path) -> subprocess.CompletedProcess[str]:
    script = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name={package!r})
sys.meta_path.insert(0, Refuse())
from bpa.cli.main import main
sys.exit(main({line.split()!r}))
"""
    return subprocess.run([sys.executable, "-c", script], cwd=place, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "line", "extra"),
    [
        ("cyclopts", "transform x.npy -o w.npy", "app"),
        ("jinja2", "report runs", "app"),
        ("sklearn", "cluster x.npy --k 3 --repeats 1", "sklearn"),
        ("pyarrow", "transform x.npy -o w.parquet", ""),
        ("safetensors", "transform x.npy -o w.safetensors", ""),
    ],
)
def test_a_missing_extra_is_named_with_its_pip_line(place: Path, package: str, line: str, extra: str) -> None:
    if line == "report runs":
        from bpa.records import RunRecord
        from bpa.runs.store import RunStore

        with RunStore(place / "runs") as store:
            store.append(RunRecord("s"))
    done = run_blocked(package, line, place)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'bpa-transform[{extra}" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_fault_of_the_program_is_not_hidden(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bpa.cli.transform as verb

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(verb, "transform_to_file", broken)
    with pytest.raises(ZeroDivisionError):
        main(["transform", "x.npy", "-o", "w.npy"])


def test_ctrl_c_is_said_and_has_its_own_code(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import bpa.cli.transform as verb

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "transform_to_file", stopped)
    assert main(["transform", "x.npy", "-o", "w.npy"]) == 130
    assert capsys.readouterr().err.startswith("bpa: stopped")


def test_no_memory_is_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import bpa.cli.transform as verb

    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(verb, "transform_to_file", greedy)
    assert main(["transform", "x.npy", "-o", "w.npy"]) == 2
    assert "memory" in capsys.readouterr().err
