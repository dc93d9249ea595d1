"""Reading the historical feature pickles without running them.

A pickle is a program. This file is an interpreter for the few instructions that a dictionary of numpy
arrays needs, and **it calls nothing**: the admitted names (``collections.defaultdict``, numpy's array and
scalar constructors, ``_codecs.encode``) are recognised by their spelling and carried out here on plain
bytes. Any other name stops the reading with that name in the message; nothing is imported, nothing
executed. Because even numpy's own constructors never run, a file cannot make them allocate: an array is
taken only when its bytes are in the file.

What enters is the bytes of a file, what leaves is nested dicts, lists and tuples of numbers, strings,
bytes and arrays. The file is long because a pickle has many instructions; it is one machine and one job, and is read
in one piece by whoever checks that it is safe.
"""

from __future__ import annotations

import codecs
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from bpa.errors import FileError, UnsafeFileError

MAX_OPCODES = 60_000_000
MAX_MEMO = 20_000_000
MAX_DEPTH = 32
MAX_STACK = 20_000_000

_DEFAULTDICT, _ORDEREDDICT, _LIST, _DICT = "defaultdict", "OrderedDict", "list", "dict"
_NDARRAY, _DTYPE, _RECONSTRUCT, _FROMBUFFER, _SCALAR, _ENCODE = (
    "ndarray", "dtype", "_reconstruct", "_frombuffer", "scalar", "encode",
)  # fmt: skip

_ADMITTED = {
    ("collections", "defaultdict"): _DEFAULTDICT,
    ("collections", "OrderedDict"): _ORDEREDDICT,
    ("builtins", "list"): _LIST,
    ("__builtin__", "list"): _LIST,
    ("builtins", "dict"): _DICT,
    ("__builtin__", "dict"): _DICT,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DTYPE,
    ("_codecs", "encode"): _ENCODE,
    **{
        (f"numpy.{core}.{module}", name): name
        for core in ("core", "_core")
        for module, name in (
            ("multiarray", _RECONSTRUCT),
            ("multiarray", _SCALAR),
            ("numeric", _FROMBUFFER),
        )
    },
}

_KINDS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f2", "f4", "f8", "b1"}


class _Name:
    """An admitted global, known by its role only."""

    __slots__ = ("role",)

    def __init__(self, role: str) -> None:
        self.role = role


class _Mark:
    __slots__ = ()


class _DType:
    """A numpy dtype before and after its state arrived."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code = code
        self.order = "|"

    def resolve(self) -> np.dtype[Any]:
        return np.dtype(self.code if self.order in "|=" else self.order + self.code)


class _Array:
    """An array before and after its state arrived."""

    __slots__ = ("value",)

    def __init__(self, value: np.ndarray | None = None) -> None:
        self.value = value


class _List(list[Any]):
    """A list that knows how deep it nests."""

    depth = 1


class _Tuple(tuple[Any, ...]):
    """A tuple that knows how deep it nests."""

    depth = 1


class _Dict(dict[Any, Any]):
    """A dict that knows how deep it nests."""

    depth = 1


def read_pickle(data: bytes, *, source: str) -> Any:
    """The value of the pickle in ``data``: dicts, lists, tuples, numbers, strings, bytes and arrays.

    Parameters
    ----------
    data : bytes
        The whole file, any protocol from 0 to 5.
    source : str
        Name of the file, for messages.

    Raises
    ------
    UnsafeFileError
        When the file names anything that is not admitted, or is built to exhaust memory or the stack.
    FileError
        When the file ends early or is no pickle.
    """
    return _Machine(data, source).run()


class _Machine:
    def __init__(self, data: bytes, source: str) -> None:
        self.data = data
        self.view = memoryview(data)
        self.position = 0
        self.source = source
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.marks = 0
        self.frozen: dict[int, np.ndarray] = {}

    # ------------------------------------------------------------------ the loop

    def run(self) -> Any:
        count = 0
        try:
            while True:
                opcode = self.take(1)[0]
                count += 1
                if count > MAX_OPCODES or len(self.stack) > MAX_STACK or len(self.memo) > MAX_MEMO:
                    raise self.bomb(f"it has more than {MAX_OPCODES:,} instructions or {MAX_STACK:,} values")
                if opcode == 0x2E:  # STOP
                    break
                handler = _HANDLERS.get(opcode)
                if handler is None:
                    raise UnsafeFileError(
                        f"{self.source} was refused: its pickle uses instruction {bytes([opcode])!r}, which no "
                        f"feature file needs. Nothing was executed."
                    )
                handler(self)
            if len(self.stack) != 1 or isinstance(self.stack[0], _Mark | _Name):
                raise self.broken("it does not end with one value")
        except (
            IndexError,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            struct.error,
            OverflowError,
        ) as error:
            if isinstance(error, FileError):
                raise
            raise self.broken(f"{type(error).__name__} near byte {self.position:,}") from None
        if self.position != len(self.data):
            raise FileError(
                f"{self.source} holds {len(self.data) - self.position:,} bytes after the end of its pickle; "
                f"one pickle a file is expected."
            )
        return _finish(self.stack[0])

    # ------------------------------------------------------------------ helpers

    def take(self, n: int) -> memoryview:
        if n < 0 or n > len(self.data) - self.position:
            raise FileError(
                f"{self.source} is truncated: {n:,} bytes are missing at byte {self.position:,} of its pickle."
            )
        start = self.position
        self.position += n
        return self.view[start : self.position]

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position, self.position + 65_536)
        if end < 0:
            raise FileError(f"{self.source} is truncated: its pickle ends inside a line of text.")
        text = self.data[self.position : end]
        self.position = end + 1
        return text

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def broken(self, why: str) -> FileError:
        return FileError(f"{self.source} is not a readable pickle: {why}.")

    def bomb(self, why: str) -> UnsafeFileError:
        return UnsafeFileError(f"{self.source} was refused: {why}. Nothing was executed.")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if isinstance(value, _Mark):
            raise self.broken("a value is missing")
        return value

    def pop_to_mark(self) -> list[Any]:
        items: list[Any] = []
        while True:
            value = self.stack.pop()
            if isinstance(value, _Mark):
                self.marks -= 1
                items.reverse()
                return items
            items.append(value)

    def nest(self, container: Any, children: list[Any]) -> Any:
        """Note the depth of ``container``, which has just received ``children``."""
        inner = max((getattr(child, "depth", 0) for child in children), default=0)
        container.depth = max(container.depth, inner + 1)
        if container.depth > MAX_DEPTH:
            raise self.bomb(f"its pickle nests more than {MAX_DEPTH} levels deep")
        return container

    def admit(self, module: str, name: str) -> None:
        role = _ADMITTED.get((module, name))
        if role is None:
            raise UnsafeFileError(
                f"{self.source} was refused: its pickle asks to load '{module}.{name}', which is not among the names "
                f"a feature file needs. Nothing was imported or executed. If you trust its origin, convert it with "
                f"the program that wrote it."
            )
        self.push(_Name(role))

    def key(self, value: Any) -> Any:
        """A dictionary key: a plain scalar, so that hashing it can neither recurse nor run."""
        value = _finish_scalar(value)
        if isinstance(value, bool | int | float | str | bytes) or value is None:
            return value
        raise self.broken(f"a dictionary key is a {type(value).__name__}")

    def items_into(self, target: Any, items: list[Any]) -> None:
        if not isinstance(target, _Dict) or len(items) % 2:
            raise self.broken("items are set on something that is no dictionary")
        for name, value in zip(items[::2], items[1::2], strict=True):
            target[self.key(name)] = value
        self.nest(target, items[1::2])

    def append_to(self, target: Any, items: list[Any]) -> None:
        if not isinstance(target, _List):
            raise self.broken("items are appended to something that is no list")
        target.extend(items)
        self.nest(target, items)

    # ------------------------------------------------------------------ what the admitted names do

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _Name) or not isinstance(arguments, _Tuple):
            raise self.broken("a call does not have the form of any admitted name")
        role, given = function.role, list(arguments)
        if (
            role == _DEFAULTDICT
            and (
                not given
                or (len(given) == 1 and isinstance(given[0], _Name) and given[0].role in (_LIST, _DICT))
            )
        ) or (role in (_ORDEREDDICT, _DICT) and not given):
            self.push(_Dict())
        elif role == _LIST and not given:
            self.push(_List())
        elif role == _DTYPE and given:
            self.push(_DType(self.kind(given[0])))
        elif role == _RECONSTRUCT and isinstance(given[0], _Name) and given[0].role == _NDARRAY:
            self.push(_Array())  # the shape given here is a placeholder; the state brings the real one
        elif role == _FROMBUFFER and len(given) == 4:
            buffer, dtype, shape, order = given
            self.push(_Array(self.array(buffer, dtype, shape, fortran=order in ("F", b"F"))))
        elif role == _SCALAR and len(given) == 2 and isinstance(given[0], _DType):
            self.push(self.array(given[1], given[0], _Tuple(), fortran=False)[()])
        elif role == _ENCODE and len(given) == 2 and given[1] in ("latin1", "latin-1", "iso-8859-1"):
            self.push(given[0].encode("latin1"))
        else:
            raise self.bomb(f"its pickle calls {role!r} in a way no feature file does")

    def kind(self, code: Any) -> str:
        if isinstance(code, bytes):
            code = code.decode("ascii", "replace")
        if not isinstance(code, str) or code.lstrip("<>|=") not in _KINDS:
            raise self.bomb(f"its pickle holds an array of {code!r}, and only plain numbers are read")
        return code.lstrip("<>|=")

    def build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, _DType) and isinstance(state, _Tuple) and len(state) >= 5:
            order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
            if order not in ("<", ">", "|", "=") or any(entry is not None for entry in state[2:5]):
                raise self.bomb("its pickle holds an array of records, and only plain numbers are read")
            target.order = order
        elif isinstance(target, _Array) and isinstance(state, _Tuple) and len(state) == 5:
            _, shape, dtype, fortran, raw = state
            target.value = self.array(raw, dtype, shape, fortran=bool(fortran))
        else:
            raise self.broken("a state is set on something that has none")

    def array(self, raw: Any, dtype: Any, shape: Any, *, fortran: bool) -> np.ndarray:
        if isinstance(raw, str):  # Python 2 bytes that were read as text
            raw = raw.encode("latin1")
        if not isinstance(raw, bytes | bytearray | memoryview) or not isinstance(dtype, _DType):
            raise self.bomb(
                "its pickle holds an array whose values are objects, and only plain numbers are read"
            )
        if not isinstance(shape, _Tuple) or len(shape) > 4 or any(type(m) is not int or m < 0 for m in shape):
            raise self.broken("an array has no usable shape")
        resolved = dtype.resolve()
        wanted = math.prod(shape) * resolved.itemsize
        if wanted != len(raw):
            raise self.broken(f"an array of shape {tuple(shape)} needs {wanted:,} bytes and has {len(raw):,}")
        flat = np.frombuffer(raw, dtype=resolved)
        return flat.reshape(tuple(shape), order="F" if fortran else "C")

    # ------------------------------------------------------------------ instructions

    def op_proto(self) -> None:
        if self.take(1)[0] > 5:
            raise self.broken("its protocol is newer than 5")

    def op_mark(self) -> None:
        self.marks += 1
        if self.marks > MAX_DEPTH:
            raise self.bomb(f"its pickle nests more than {MAX_DEPTH} levels deep")
        self.push(_Mark())

    def op_pop(self) -> None:
        if isinstance(self.stack.pop(), _Mark):
            self.marks -= 1

    def op_int(self) -> None:
        text = self.line()
        self.push({b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text))

    def op_long(self) -> None:
        self.push(int(self.line().rstrip(b"L")))

    def op_long1(self) -> None:
        self.push(int.from_bytes(self.take(self.take(1)[0]), "little", signed=True))

    def text(self, n: int) -> None:
        self.push(str(self.take(n), "utf-8", "surrogatepass"))

    def raw(self, n: int) -> None:
        self.push(bytes(self.take(n)))

    def op_string(self) -> None:
        text = self.line().strip()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
            raise self.broken("a text is not quoted")
        self.push(codecs.escape_decode(text[1:-1])[0])

    def op_tuple(self, n: int) -> None:
        items = [self.pop() for _ in range(n)][::-1]
        self.push(self.nest(_Tuple(items), items))

    def op_tuple_of_mark(self) -> None:
        items = self.pop_to_mark()
        self.push(self.nest(_Tuple(items), items))

    def op_list_of_mark(self) -> None:
        items = self.pop_to_mark()
        self.push(self.nest(_List(items), items))

    def op_dict_of_mark(self) -> None:
        items = self.pop_to_mark()
        self.push(_Dict())
        self.items_into(self.stack[-1], items)

    def op_append(self) -> None:
        item = self.pop()
        self.append_to(self.stack[-1], [item])

    def op_appends(self) -> None:
        items = self.pop_to_mark()
        self.append_to(self.stack[-1], items)

    def op_setitem(self) -> None:
        value, name = self.pop(), self.pop()
        self.items_into(self.stack[-1], [name, value])

    def op_setitems(self) -> None:
        items = self.pop_to_mark()
        self.items_into(self.stack[-1], items)

    def op_global(self) -> None:
        module, name = self.line(), self.line()
        self.admit(module.decode("utf-8", "replace"), name.decode("utf-8", "replace"))

    def op_inst(self) -> None:
        module, name = self.line(), self.line()
        self.admit(module.decode("utf-8", "replace"), name.decode("utf-8", "replace"))
        raise self.bomb("its pickle makes an instance, and feature files hold plain numbers")

    def op_stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise self.broken("a name is not text")
        self.admit(module, name)

    def put(self, index: int) -> None:
        if isinstance(self.stack[-1], _Mark):
            raise self.broken("nothing to remember")
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.push(self.memo[index])

    def op_bytearray8(self) -> None:
        self.raw(self.number("Q"))

    def op_nothing(self) -> None:
        """READONLY_BUFFER: arrays are copied anyway."""


def _finish_scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _finish(value: Any) -> Any:
    """The array inside a lone array; containers are unpacked by their reader through `as_array`."""
    return value.value if isinstance(value, _Array) else value


def as_array(value: Any) -> np.ndarray | None:
    """The array that ``value``, a value met inside the result of `read_pickle`, stands for, or None."""
    if isinstance(value, _Array):
        return value.value
    return value if isinstance(value, np.ndarray) else None


def _frame(machine: _Machine) -> None:
    machine.number("Q")  # a hint for buffering; the bytes themselves follow


_HANDLERS: dict[int, Callable[[_Machine], None]] = {
    ord(code): handler
    for code, handler in {
        "\x80": _Machine.op_proto,
        "\x95": _frame,
        "(": _Machine.op_mark,
        "0": _Machine.op_pop,
        "1": lambda m: (m.pop_to_mark(), None)[1],
        "2": lambda m: m.push(m.stack[-1]),
        "N": lambda m: m.push(None),
        "\x88": lambda m: m.push(True),
        "\x89": lambda m: m.push(False),
        "I": _Machine.op_int,
        "J": lambda m: m.push(m.number("i")),
        "K": lambda m: m.push(m.number("B")),
        "M": lambda m: m.push(m.number("H")),
        "L": _Machine.op_long,
        "\x8a": _Machine.op_long1,
        "F": lambda m: m.push(float(m.line())),
        "G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
        "S": _Machine.op_string,
        "T": lambda m: m.raw(m.number("I")),
        "U": lambda m: m.raw(m.number("B")),
        "B": lambda m: m.raw(m.number("I")),
        "C": lambda m: m.raw(m.number("B")),
        "\x8e": lambda m: m.raw(m.number("Q")),
        "\x96": _Machine.op_bytearray8,
        "\x98": _Machine.op_nothing,
        "V": lambda m: m.push(m.line().decode("raw-unicode-escape")),
        "X": lambda m: m.text(m.number("I")),
        "\x8c": lambda m: m.text(m.number("B")),
        "\x8d": lambda m: m.text(m.number("Q")),
        "]": lambda m: m.push(_List()),
        "l": _Machine.op_list_of_mark,
        "a": _Machine.op_append,
        "e": _Machine.op_appends,
        ")": lambda m: m.push(_Tuple()),
        "t": _Machine.op_tuple_of_mark,
        "\x85": lambda m: m.op_tuple(1),
        "\x86": lambda m: m.op_tuple(2),
        "\x87": lambda m: m.op_tuple(3),
        "}": lambda m: m.push(_Dict()),
        "d": _Machine.op_dict_of_mark,
        "s": _Machine.op_setitem,
        "u": _Machine.op_setitems,
        "c": _Machine.op_global,
        "i": _Machine.op_inst,
        "\x93": _Machine.op_stack_global,
        "R": _Machine.reduce,
        "b": _Machine.build,
        "p": lambda m: m.put(int(m.line())),
        "q": lambda m: m.put(m.number("B")),
        "r": lambda m: m.put(m.number("I")),
        "\x94": lambda m: m.put(len(m.memo)),
        "g": lambda m: m.get(int(m.line())),
        "h": lambda m: m.get(m.number("B")),
        "j": lambda m: m.get(m.number("I")),
    }.items()
}
