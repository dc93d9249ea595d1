"""The how-to page runs, from its first line to its last."""

from __future__ import annotations

import re

import pytest


@pytest.mark.slow
def test_every_python_block_of_the_page_runs_in_order(repository, tmp_path, monkeypatch):
    text = (repository / "docs" / "howto" / "retrieval.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 6
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        if "import faiss" in block:
            pytest.importorskip("faiss")
        exec(compile(block, "retrieval.md", "exec"), names)  # noqa: S102 - our own page
