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


def test_json_holds_the_four_rows_beside_the_papers_numbers(reid_file, capsys):
    code = main(["retrieve", str(reid_file), "--preset", "paper", "--rerank", "k-reciprocal", "--json"])
    out, err = capsys.readouterr()
    assert code == 0
    whole = json.loads(out)
    rows = {record["task"]["paper_row"] for record in whole["records"]}
    assert {"baseline", "bpa", "k-reciprocal", "bpa + k-reciprocal"} <= rows
    assert "72.9 / 75.7" in out
    assert "beyond the input" in err  # the estimate comes before the work


def test_text_names_protocols_baselines_and_the_definition(reid_file, capsys, tmp_path):
    line = [
        "retrieve",
        str(reid_file),
        "--reg",
        "0.1,0.2",
        "--protocol",
        "joint,per-query",
        "--baselines",
        "csls,nicdm",
    ]
    assert main([*line, "--out", str(tmp_path / "run")]) == 0
    out, _ = capsys.readouterr()
    for word in ("per-query", "csls", "nicdm", "finite-sum", "reg=0.2", "S_10"):
        assert word in out
    before = (tmp_path / "run" / "results.jsonl").read_bytes()
    assert main([*line, "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "results.jsonl").read_bytes() == before
    assert json.loads((tmp_path / "run" / "rankings.json").read_text())["queries"][0] == 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--baselines", "magic"], "magic"),
        (["--reg", "0"], "positive"),
        (["--reg", "0.1", "--budget", "1KB"], "exceeds the budget"),
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
    for word in ("bpa reg=0.2", "unit", "have more right answers", "Rank-1"):
        assert word in text
    assert "http://" not in text.replace("http://www.w3.org", "")
