"""The command ``bpa``: finds the verb, runs it, and turns what went wrong into one sentence and an exit code.

Exit codes: 0 done; 2 something the user can put right (a file, a flag, memory, a missing extra), said in
one sentence on stderr; 130 stopped by Ctrl-C; 1 a fault of this program, with its traceback.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

from bpa.errors import ArgumentError, BPAError, FileError, MissingExtraError

if TYPE_CHECKING:
    from cyclopts import App

VERBS = {
    "transform": "Transform a feature file: W, a top-k graph, row blocks or distances.",
    "fewshot": "Few-shot accuracy with and without a transform.",
    "cluster": "Clustering quality with and without a transform.",
    "retrieve": "Retrieval quality with and without a transform.",
    "study": "Run a named study.",
    "doctor": "Say whether the transform suits a feature file, and what this installation has.",
    "convert": "Convert feature files, old pickles among them, to a safe format.",
    "report": "Make one self-contained HTML page from finished runs.",
    "demo": "Few-shot, clustering and retrieval on embedded data, with a report.",
}

_EPILOGUE = (
    "Every flag can be held by a TOML file, one table per verb: bpa --config FILE VERB ... "
    "Exit codes: 0 done, 2 something to put right, 130 stopped by Ctrl-C."
)


def build_app(*, eager: bool = False) -> App:
    """Return the command line; a verb's module is imported when it is asked for, or now if ``eager``."""
    try:
        from cyclopts import App
    except ModuleNotFoundError as error:
        if error.name != "cyclopts":
            raise
        raise MissingExtraError("the command line", "app") from None
    import bpa

    app = App(
        name="bpa",
        help="Balanced-Pairwise-Affinities: features become the rows of their optimal self-transport plan.",
        help_epilogue=_EPILOGUE,
        help_format="plaintext",
        version=bpa.__version__,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for verb in VERBS:
        if find_spec(f"bpa.cli.{verb}") is not None:
            if eager:
                app.command(getattr(import_module(f"bpa.cli.{verb}"), verb), name=verb)
            else:
                app.command(f"bpa.cli.{verb}:{verb}", name=verb)
    app.register_install_completion_command(help="Install completion for this shell.")
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        app = build_app(eager=not tokens or tokens[0] in ("--help", "-h"))
        tokens = _take_config(app, tokens)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            result = _call(app, tokens)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("stopped; what was finished is kept, and the same command goes on from there.", 130)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BPAError as error:
        return _complain(str(error), 2)
    except MemoryError:
        return _complain("there is not enough memory for this; ask for less, or give --budget.", 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}.", 2)
    return result if isinstance(result, int) else 0


def run() -> None:
    """Entry point of the installed command."""
    sys.exit(main())


def _call(app: App, tokens: list[str]) -> Any:
    """Run the verb; what the command line itself finds wrong becomes an `ArgumentError`."""
    from cyclopts import CycloptsError

    try:
        return app(tokens, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        cause = error.__cause__
        if isinstance(cause, BPAError):
            raise cause from None
        said = " ".join(str(error).split())
        raise ArgumentError(f"{said} See 'bpa --help'.") from None


def _take_config(app: App, tokens: list[str]) -> list[str]:
    """Take ``--config FILE`` out of the tokens and let the file fill in flags that are not given."""
    rest: list[str] = []
    path: str | None = None
    stream = iter(tokens)
    for word in stream:
        if word == "--config":
            path = next(stream, None)
            if path is None:
                raise ArgumentError("--config needs a TOML file after it.")
        elif word.startswith("--config="):
            path = word.partition("=")[2]
        elif word == "--":
            rest += [word, *stream]
        else:
            rest.append(word)
    if path is not None:
        import tomllib

        from cyclopts.config import Dict

        try:
            with open(path, "rb") as file:
                table = tomllib.load(file)
        except OSError as error:
            raise FileError(f"--config {path} cannot be read: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FileError(f"--config {path} is not TOML: {error}.") from None
        unknown = sorted(set(table) - set(VERBS))
        if unknown:
            raise FileError(
                f"--config {path} may hold one table per verb ({', '.join(VERBS)}). Got {unknown[0]!r}."
            )
        app.config = (Dict(table, source=path),)
    return rest


def _complain(sentence: str, code: int) -> int:
    text = " ".join(sentence.split())
    sys.stderr.write(f"bpa: {text}\n")
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,  # noqa: ARG001 - the signature of warnings.showwarning
    lineno: int,  # noqa: ARG001 - the signature of warnings.showwarning
    file: TextIO | None = None,  # noqa: ARG001 - the signature of warnings.showwarning
    line: str | None = None,  # noqa: ARG001 - the signature of warnings.showwarning
) -> None:
    if issubclass(category, UserWarning | RuntimeWarning):
        sys.stderr.write(f"bpa: note: {' '.join(str(message).split())}\n")
