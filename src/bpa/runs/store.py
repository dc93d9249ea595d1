"""Where runs are kept: an append-only folder that a kill, a full disk or a second writer cannot spoil.

A folder holds ``results.jsonl`` (one `RunRecord` a line, without its wall time), ``timings.jsonl`` (the
wall times), ``plans.jsonl`` (one `RunPlan` a line: what was asked for), and ``journal/`` (what unfinished rows have
done so far). A line counts once its newline is on the disk: a line without one is the trace of an interrupted write
and is dropped. Two runs of the same rows, in the same order, leave the same bytes in ``results.jsonl``, however often
they were interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from bpa.errors import FileError
from bpa.records import RunPlan, RunRecord
from bpa.records.runs import digest, plain, row_key

_LOCKS: dict[str, int] = {}  # folder -> descriptor of the lock file this process holds
_GUARD = threading.RLock()
Line = TypeVar("Line", RunRecord, RunPlan)


class RunStore:
    """A folder of run records that only grows.

    Parameters
    ----------
    folder : path
        Made when the first thing is written. One process writes at a time; any number may read.

    Examples
    --------
    >>> import tempfile
    >>> from bpa.records import RunRecord
    >>> store = RunStore(tempfile.mkdtemp())
    >>> store.append(RunRecord("demo", {"seed": 0}, values={"accuracy": [0.5, 0.25]}, seconds=3.0))
    >>> store.find(study="demo", task={"seed": 0}).values
    {'accuracy': [0.5, 0.25]}
    >>> store.find(study="demo", task={"seed": 1}) is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise FileError(f"a RunStore needs a folder. {self.folder} is a file; name a folder.")
        self._places: dict[str, tuple[int, int]] = {}  # key of a row -> where its newest line begins and ends
        self._read = (0, 0)  # bytes and lines of the results file that `_places` knows
        self._timed: tuple[int, dict[str, float]] = (
            0,
            {},
        )  # bytes of the file of wall times, and what it holds

    @property
    def results_path(self) -> Path:
        """The file of records, wall times left out."""
        return self.folder / "results.jsonl"

    @property
    def timings_path(self) -> Path:
        """The file of wall times, one line a record, in the same order."""
        return self.folder / "timings.jsonl"

    @property
    def plans_path(self) -> Path:
        """The file of what was asked for, one line a run."""
        return self.folder / "plans.jsonl"

    def plan(self, asked: RunPlan) -> None:
        """Write what a run is about to do, unless the folder knows it already."""
        if asked not in self.plans():
            with self._writing():
                _append_line(self.plans_path, asked.to_json())

    def plans(self) -> list[RunPlan]:
        """Return what was asked for, oldest first."""
        return [
            _parsed(RunPlan, line, k, self.plans_path)
            for k, line in enumerate(_lines(self.plans_path), start=1)
        ]

    def records(self) -> list[RunRecord]:
        """Return every finished record, oldest first, with its wall time where that was kept."""
        seconds = self._wall_times()
        out = []
        for number, line in enumerate(_lines(self.results_path), start=1):
            record = _parsed(RunRecord, line, number, self.results_path)
            out.append(replace(record, seconds=seconds.get(_line_key(line), 0.0)))
        return out

    def find(
        self, *, study: str, task: Any, way: Any = MappingProxyType({}), data: Any = MappingProxyType({})
    ) -> RunRecord | None:
        """Return the newest record of this row, or None."""
        self._look()
        place = self._places.get(row_key(study, task, way, data))
        if place is None:
            return None
        with open(self.results_path, "rb") as file:
            file.seek(place[0])
            line = file.read(place[1] - place[0]).decode()
        return replace(RunRecord.from_json(line), seconds=self._wall_times().get(_line_key(line), 0.0))

    def _look(self) -> None:
        """Learn where the rows are that were written since the last look, by whomever."""
        size = self.results_path.stat().st_size if self.results_path.exists() else 0
        if size < self._read[0]:  # another file by the same name
            self._places, self._read = {}, (0, 0)
        if size == self._read[0]:
            return
        begin, number = self._read
        for line in _lines(self.results_path, start=begin):
            record = _parsed(RunRecord, line, number + 1, self.results_path)
            end = begin + len(line.encode())
            self._places[record.key] = (begin, end)
            begin, number = end + 1, number + 1
        self._read = (begin, number)

    def _wall_times(self) -> dict[str, float]:
        """Return the wall times that were kept, by the key of their line."""
        size = self.timings_path.stat().st_size if self.timings_path.exists() else 0
        if size != self._timed[0]:
            seconds: dict[str, float] = {}
            for line in _lines(self.timings_path):
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a lost wall time spoils nothing
                    entry = json.loads(line)
                    seconds[entry["record"]] = float(entry["seconds"])
            self._timed = (size, seconds)
        return self._timed[1]

    def append(self, record: RunRecord) -> None:
        """Write ``record`` at the end; when this returns, it is on the disk."""
        line = record.to_json(seconds=False)
        with self._writing():
            timed = {"record": _line_key(line), "seconds": record.seconds}
            _append_line(self.timings_path, json.dumps(timed, separators=(",", ":")))
            _append_line(self.results_path, line)

    def journal(self, key: Any) -> Journal:
        """Return the journal of one unfinished row; ``key`` is what it is known by, or any settings."""
        if isinstance(key, str):
            name = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', key).strip('-.')[:60]}-{digest(key)[:8]}"
        else:
            name = digest(key)
        return Journal(self, self.folder / "journal" / f"{name}.jsonl")

    def close(self) -> None:
        """Let another process write."""
        with _GUARD:
            handle = _LOCKS.pop(self._lock_key(), None)
            if handle is not None:
                os.close(handle)

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _lock_key(self) -> str:
        return f"{os.getpid()}:{self.folder.resolve()}"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the folder's lock: taken at the first write, kept until `close` or the end of the process."""
        with _GUARD:
            key = self._lock_key()
            if key not in _LOCKS:
                try:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
                except OSError as error:
                    raise _cannot_write(self.folder, error) from error
                if not _try_lock(handle):
                    os.close(handle)
                    raise FileError(
                        f"{self.folder} is being written by another process. Wait for it, or name another."
                    )
                _LOCKS[key] = handle
            yield


class Journal:
    """What one unfinished run has done so far: ``done`` maps an index to its value.

    ``add`` puts a value on the disk before it returns, and keeps it as JSON gives it back (a tuple becomes
    a list), so that a resumed run sees exactly what an uninterrupted one saw.
    """

    def __init__(self, store: RunStore, path: Path) -> None:
        self._store = store
        self.path = path
        self.done: dict[int, Any] = {}
        for number, line in enumerate(_lines(path), start=1):
            try:
                index, value = json.loads(line)
                self.done[int(index)] = value
            except (ValueError, TypeError) as error:
                raise FileError(
                    f"line {number} of {path} cannot be read: {error}. Remove the file."
                ) from None

    def add(self, index: int, value: Any) -> None:
        """Record that step ``index`` gave ``value``; NaN and infinities survive."""
        line = json.dumps([int(index), plain(value, keep_nonfinite=True)], separators=(",", ":"))
        with self._store._writing():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _append_line(self.path, line)
        self.done[int(index)] = json.loads(line)[1]

    def discard(self) -> None:
        """Remove the journal, once its run is in the store."""
        with self._store._writing():
            self.path.unlink(missing_ok=True)
        self.done = {}


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a whole file so that a reader finds the old one or the new one, never a part.

    Parameters
    ----------
    path : path
        Its folder is made where missing.
    content : str or bytes
        Text is written as UTF-8.

    Returns
    -------
    Path
        ``path``.
    """
    target = Path(path)
    raw = content.encode() if isinstance(content, str) else content
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise _cannot_write(target, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    return target


def _line_key(line: str) -> str:
    """Return what ties a wall time to its record."""
    return hashlib.sha256(line.encode()).hexdigest()[:16]


def _parsed(kind: type[Line], line: str, number: int, path: Path) -> Line:
    """Return a record or a plan from its line; where that is broken, say which line it is."""
    try:
        return kind.from_json(line)
    except FileError as error:
        raise FileError(f"line {number} of {path} cannot be read: {error}") from None


def _lines(path: Path, *, start: int = 0) -> list[str]:
    """Return the whole lines of a file from a byte on; what follows the last newline was never finished."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            raw = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return raw[: raw.rfind(b"\n") + 1].decode().split("\n")[:-1]
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: {error}.") from None


def _append_line(path: Path, line: str) -> None:
    """Append one line, all of it or none of it, and wait until it is on the disk."""
    raw = line.encode() + b"\n"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        whole = _end_of_last_line(handle)
        try:
            os.ftruncate(handle, whole)  # drop the trace of an interrupted write
            os.lseek(handle, whole, os.SEEK_SET)
            view = memoryview(raw)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, whole)
            if isinstance(error, OSError):
                raise _cannot_write(path, error) from error
            raise
    finally:
        os.close(handle)


def _end_of_last_line(handle: int) -> int:
    """Return the number of bytes up to and with the last newline."""
    end = os.lseek(handle, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        os.lseek(handle, start, os.SEEK_SET)
        found = os.read(handle, end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _cannot_write(path: Path, error: OSError) -> FileError:
    return FileError(
        f"{path} cannot be written: {error.strerror or error}. Name another place, or make room there."
    )


def _try_lock(handle: int) -> bool:
    """Take the lock of an open file without waiting; the system lets go of it when the process ends."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
