"""``bpa retrieve`` end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("cyclopts")

from bpa.cli.main import main
from bpa.data.reid import write_reid_features
from bpa.records import QueryGallery


@pytest.fixture
def reid_file(tmp_path, rng):
    centres = rng.normal(size=(15, 8))
    ids = np.repeat(np.arange(15), 6)
    x = (centres[ids] + 0.6 * rng.normal(size=(90, 8))).astype(np.float32)
    query = np.arange(0, 90, 6)
    task = QueryGallery(x, query, np.setdiff1d(np.arange(90), query), ids, np.tile([0, 1], 45))
    return write_reid_features(tmp_path / "reid.npz", task, dataset="cuhk03-detected")


def test_json_holds_the_papers_rows_beside_its_gains(reid_file, capsys):
    line = ["retrieve", str(reid_file), "--paper", "--host", "nearest", "k-reciprocal"]
    assert main([*line, "--json"]) == 0
    out, err = capsys.readouterr()
    whole = json.loads(out)
    bpa = [r["way"] for r in whole["records"] if r["way"]["transform"]["name"] == "bpa"]
    assert [(way["host"], way["transform"]["reg"], way["settings"]["rows"]["measure"]) for way in bpa] == [
        ("nearest", 0.25, "euclidean"), ("k-reciprocal", 0.25, "euclidean"),
    ]  # fmt: skip
    gains = whole["tables"][-1]
    assert gains["title"] == "Same protocol, your features: gains beside the paper's on cuhk03-detected"
    assert [row[1] for row in gains["rows"]] == [pytest.approx(v) for v in (5.0, 4.7, 0.8, 0.9)]
    assert "72.9" not in out
    assert "beyond the input" in err  # the estimate comes before the work
    assert main([*line, "--these-are-the-paper-features"]) == 0
    assert "72.90" in capsys.readouterr().out


def test_raw_unit_and_centred_features_stand_beside_it_unless_told_not_to(reid_file, capsys):
    def rows(*flags):
        assert main(["retrieve", str(reid_file), *flags, "--json"]) == 0
        return [r["way"]["transform"]["name"] for r in json.loads(capsys.readouterr().out)["records"]]

    assert rows() == ["identity", "unit", "centred", "bpa"]
    assert rows("--no-baselines") == ["bpa"]


def test_text_names_protocols_hosts_and_what_is_deleted(reid_file, capsys, tmp_path):
    line = [
        "retrieve",
        str(reid_file),
        "--reg",
        "0.1,0.2",
        "--protocol",
        "joint,per-query",
        "--host",
        "nearest,csls,nicdm",
    ]
    assert main([*line, "--out", str(tmp_path / "run")]) == 0
    out, _ = capsys.readouterr()
    for word in ("per-query", "csls", "nicdm", "finite-sum", "reg 0.2", "S_10", "nearest, centred"):
        assert word in out
    assert (
        "gallery items of the query's identity and camera are deleted, other items of its camera stay" in out
    )
    before = (tmp_path / "run" / "results.jsonl").read_bytes()
    assert main([*line, "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "results.jsonl").read_bytes() == before
    assert json.loads((tmp_path / "run" / "rankings.json").read_text())["queries"][0] == 0
    capsys.readouterr()
    assert main([*line, "--deleted", "camera"]) == 0
    assert "every gallery item of the query's camera is deleted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--host", "magic"], "magic"),
        (["--reg", "0"], "positive"),
        (["--reg", "0.1", "--budget", "1KB"], "exceeds the budget"),
        (["--paper-table", "imagenet"], "no numbers for 'imagenet'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(reid_file, capsys, flags, sentence):
    assert main(["retrieve", str(reid_file), *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err


def test_the_report_shows_answers_before_and_after_with_pictures(reid_file, tmp_path, rng):
    pytest.importorskip("jinja2")
    with np.load(reid_file) as stored:
        content = dict(stored)
    pictures = tmp_path / "pictures.npz"
    np.savez(pictures, **content, images=rng.integers(0, 255, (90, 4, 3), dtype=np.uint8))
    page = tmp_path / "page.html"
    assert main(["retrieve", str(pictures), "--reg", "0.2", "--report", str(page)]) == 0
    text = page.read_text()
    assert text.count("data:image/png;base64,") >= 12 * 2 * 5
    for word in ("bpa", "unit", "have more right answers", "Rank-1", "first answers changed most"):
        assert word in text
    assert "http://" not in text.replace("http://www.w3.org", "")
