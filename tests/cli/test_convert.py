"""``bpa convert`` end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="needs the app extra")

from bpa.cli.main import main
from bpa.data.episodes import draw_tasks
from bpa.records import FeatureSet


@pytest.fixture
def features(rng: np.random.Generator) -> FeatureSet:
    labels = np.repeat(np.arange(8), 30)
    return FeatureSet(rng.random((240, 24)).astype(np.float32), labels=labels)


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    return code, *capsys.readouterr()


def test_bpa_convert_makes_a_safe_file_with_the_same_tasks(
    features: FeatureSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], rng: np.random.Generator
) -> None:
    import collections
    import os
    import pickle

    groups: Any = collections.defaultdict(list)
    for row in rng.permutation(240):
        groups[int(features.labels[row])].append(features.features[row])
    (tmp_path / "output.plk").write_bytes(pickle.dumps(groups))
    code, out, err = said(capsys, "convert", str(tmp_path / "output.plk"), str(tmp_path / "x.npz"))
    assert (code, err) == (0, "")
    assert "rows: 240" in out
    from bpa.data.features import read_features

    old, new = read_features(tmp_path / "output.plk"), read_features(tmp_path / "x.npz")
    np.testing.assert_array_equal(draw_tasks(old, n_tasks=9).rows, draw_tasks(new, n_tasks=9).rows)
    np.testing.assert_array_equal(old.features, new.features)
    assert said(capsys, "convert", str(tmp_path / "output.plk"), str(tmp_path / "x.npz"))[0] == 2
    evil = tmp_path / "evil.plk"
    evil.write_bytes(
        b"c" + os.mkdir.__module__.encode() + b"\nmkdir\n(S'" + str(tmp_path / "made").encode() + b"'\ntR."
    )
    code, _, err = said(capsys, "convert", str(evil), str(tmp_path / "y.npz"))
    assert code == 2
    assert "mkdir" in err
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "y.npz").exists()
