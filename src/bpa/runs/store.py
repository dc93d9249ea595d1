"""Where runs are kept: an append-only folder that a kill, a full disk or a second writer cannot spoil.

A folder holds ``results.jsonl`` (one `RunRecord` a line, without its wall time), ``timings.jsonl`` (the
wall times), and ``journal/`` (what unfinished runs have done so far). A line counts once its newline is on
the disk: a line without one is the trace of an interrupted write and is dropped. Two runs of the same
configurations, in the same order, leave the same bytes in ``results.jsonl``, however often they were
interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bpa.errors import FileError
from bpa.records import RunRecord, plain

_LOCKS: dict[str, int] = {}  # folder -> descriptor of the lock file this process holds
_GUARD = threading.RLock()


def canonical_json(value: Any) -> str:
    """Return ``value`` as the one line of strict JSON by which two configurations are compared."""
    return json.dumps(
        plain(value), sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )


def digest(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of `canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


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
    >>> store.find({"seed": 0}).values
    {'accuracy': [0.5, 0.25]}
    >>> store.find({"seed": 1}) is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise FileError(f"a RunStore needs a folder. {self.folder} is a file; name a folder.")

    @property
    def results_path(self) -> Path:
        """The file of records, wall times left out."""
        return self.folder / "results.jsonl"

    @property
    def timings_path(self) -> Path:
        """The file of wall times, one line a record, in the same order."""
        return self.folder / "timings.jsonl"

    def records(self) -> list[RunRecord]:
        """Return every finished record, oldest first, with its wall time where that was kept."""
        seconds: dict[str, float] = {}
        for line in _lines(self.timings_path):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a lost wall time spoils nothing
                entry = json.loads(line)
                seconds[entry["record"]] = float(entry["seconds"])
        out = []
        for number, line in enumerate(_lines(self.results_path), start=1):
            try:
                record = RunRecord.from_json(line)
            except FileError as error:
                raise FileError(f"line {number} of {self.results_path} cannot be read: {error}") from None
            found = seconds.get(hashlib.sha256(line.encode()).hexdigest()[:16], 0.0)
            out.append(RunRecord(**{**record.__dict__, "seconds": found}))
        return out

    def find(
        self, config: Any, *, study: str | None = None, data: Mapping[str, Any] | None = None
    ) -> RunRecord | None:
        """Return the newest record of this configuration (and study, and data, where given), or None."""
        wanted, on = canonical_json(config), None if data is None else canonical_json(data)
        for record in reversed(self.records()):
            if canonical_json(record.config) != wanted:
                continue
            if (study is None or record.study == study) and (on is None or canonical_json(record.data) == on):
                return record
        return None

    def append(self, record: RunRecord) -> None:
        """Write ``record`` at the end; when this returns, it is on the disk."""
        line = record.to_json(seconds=False)
        key = hashlib.sha256(line.encode()).hexdigest()[:16]
        with self._writing():
            _append_line(self.timings_path, canonical_json({"record": key, "seconds": record.seconds}))
            _append_line(self.results_path, line)

    def journal(self, key: Any) -> Journal:
        """Return the journal of one unfinished run; ``key`` is its configuration, or a name for it."""
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


def _lines(path: Path) -> list[str]:
    """Return the whole lines of a file; what follows the last newline was never finished."""
    try:
        raw = path.read_bytes()
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
