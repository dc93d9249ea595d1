"""The environment a record keeps."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import torch

import bpa
from bpa.runs.environment import describe_environment


def test_two_calls_agree_and_hold_no_clock_path_or_host() -> None:
    first, second = describe_environment(), describe_environment()
    assert first == second
    text = json.dumps(first)
    assert str(Path.home()) not in text
    assert os.getcwd() not in text


def test_it_names_the_versions_that_change_numbers() -> None:
    found = describe_environment()
    assert found["bpa"] == bpa.__version__
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["devices"][0] == "cpu"


def test_a_checkout_reports_its_commit(repository: Path) -> None:
    commit = describe_environment()["commit"]
    if (repository / ".git" / "HEAD").is_file():
        assert commit is not None
        assert len(commit) == 40
        int(commit, 16)
    else:
        assert commit is None or len(commit) == 40
