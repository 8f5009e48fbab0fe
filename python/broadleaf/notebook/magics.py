"""The magics `%px`, `%%px`, `%autopx`, `%pxresult` and `%pxconfig`."""

from __future__ import annotations

import ast
import re
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.error import UsageError
from IPython.core.magic import Magics, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from broadleaf.errors import RemoteError

if TYPE_CHECKING:
    from broadleaf.client.results.async_result import AsyncResult
    from broadleaf.client.views.direct import DirectView


# Engines as written on the line of a magic.


_SLICE = re.compile(r"\[?\s*(-?\d+)?\s*:\s*(-?\d+)?\s*(?::\s*(-?\d+)?\s*)?\]?")
_RANGE = re.compile(r"range\(\s*(-?\d+(?:\s*,\s*-?\d+){0,2})\s*\)")


def parse_targets(text: str, ids: list[int]) -> Any:
    """Targets of a view from `all`, `3`, `-1`, `0,2`, `[0, 2]`, `range(4)`, or a slice of the `ids` such as `::2`.

    Raises `ValueError`.
    """
    text = text.strip().strip("'\"")
    if text == "all":
        return "all"
    found = _SLICE.fullmatch(text)
    if found:
        return ids[slice(*(None if part is None else int(part) for part in found.groups()))]
    found = _RANGE.fullmatch(text)
    if found:
        return list(range(*(int(part) for part in found[1].split(","))))
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    if isinstance(value, int) and not isinstance(value, bool):
        return ids[value] if value < 0 else value
    if isinstance(value, list | tuple | set) and all(isinstance(item, int) for item in value):
        return list(value)
    raise ValueError(f"{text!r} does not name engines; write all, 3, 0,2, [0, 2], range(4), or a slice such as ::2")


# Completion of engines' names after `%px` and in cells of `%%px`.


# Engines that are busy are not waited for.
_TIMEOUT_S = 1.0
_CELL = re.compile(r"%%(px\w*)[^\n]*\n")
_LINE = re.compile(r"%(px\w*)[ \t]+")


class EngineCompleter:
    """A matcher of IPython's completer that asks the first engine of a magic's view."""

    matcher_identifier = "broadleaf.engine_names"

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    @classmethod
    def install(cls, shell: Any) -> None:
        """Adds it to a session, once."""
        completer = getattr(shell, "Completer", None)
        if completer is None or any(
            getattr(matcher, "matcher_identifier", "") == cls.matcher_identifier
            for matcher in completer.custom_matchers
        ):
            return
        made = cls(shell)

        @context_matcher(identifier=cls.matcher_identifier)  # type: ignore[untyped-decorator]
        def match_engine_names(context: Any) -> Any:
            return made.match(context)

        completer.custom_matchers.append(match_engine_names)

    def match(self, context: Any) -> dict[str, Any]:
        """Completions for an IPython context; none if it has no magic of ours."""
        nothing: dict[str, Any] = {"completions": [], "suppress": False}
        text = context.full_text
        position = _position(text, context.cursor_line, context.cursor_position)
        found = _CELL.match(text)
        if found is None:
            line_start = text.rfind("\n", 0, position) + 1
            found = _LINE.match(text, line_start)
        if found is None or found.end() > position:
            return nothing
        view = self._view(found[1])
        if view is None:
            return nothing
        try:
            matches, start = _ask(view, text[found.end() :], position - found.end())
        except Exception:
            # Completion must not fail because an engine is busy or dead.
            return nothing
        replaced = text[found.end() + start : position]
        token = context.token
        # IPython replaces the token it has found, which may begin before or after what the engine replaces.
        extra = token[: len(token) - len(replaced)] if token.endswith(replaced) else ""
        cut = len(replaced) - len(token) if replaced.endswith(token) else 0
        completions = [SimpleCompletion(extra + match[max(0, cut) :], type="engine") for match in matches]
        return {"completions": completions, "suppress": bool(completions)}

    def _view(self, magic: str) -> DirectView | None:
        function = self._shell.magics_manager.magics["cell"].get(magic)
        view: DirectView | None = getattr(getattr(function, "__self__", None), "view", None)
        return None if view is None or view.client.closed else view


def _position(text: str, line: int, column: int) -> int:
    lines = text.split("\n")
    return sum(len(one) + 1 for one in lines[:line]) + column


def _ask(view: DirectView, text: str, position: int) -> tuple[list[str], int]:
    found: tuple[list[str], int] = view.complete(text, position, timeout=_TIMEOUT_S)
    return found


_NOT_DEFINED = re.compile(r"name '(\w+)' is not defined")


def _missing_name(error: BaseException) -> str:
    """The name that an engine does not know, or ''."""
    found = _NOT_DEFINED.match(error.evalue) if isinstance(error, RemoteError) and error.ename == "NameError" else None
    return found[1] if found is not None else ""


_GROUPINGS = ("type", "engine", "order", "lines")
# Number of engines that a message names one by one.
_NAMED_ENGINES = 10


def _arguments(*arguments: Any) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for one in arguments:
            function = one(function)
        return function

    return decorate


def _choice(*names: str, to: str, value: Any, text: str) -> Any:
    return argument(*names, action="store_const", const=value, dest=to, default=None, help=text)


_how_to_run = _arguments(
    _choice("-b", "--block", to="block", value=True, text="wait for the engines and show what they print"),
    _choice("-a", "--noblock", to="block", value=False, text="return an AsyncResult at once"),
    _choice("--stream", to="stream", value=True, text="show output as it arrives"),
    _choice("--no-stream", to="stream", value=False, text="show output when all engines are done"),
    argument("-t", "--targets", type=str, help="the engines: all, 3, 0,2, [0,2], range(4), or a slice such as ::2"),
    _choice("--verbose", to="set_verbose", value=True, text="print on which engines each cell runs"),
    _choice("--no-verbose", to="set_verbose", value=False, text="do not print the engines"),
    argument(
        "--progress-after",
        dest="progress_after",
        type=float,
        help="seconds until a progress bar is shown; 0: at once, -1: never",
    ),
    argument(
        "--signal-on-interrupt",
        dest="signal_on_interrupt",
        type=str,
        help="signal for the engines when you interrupt a waiting cell: SIGINT (or 2), SIGKILL (or 9), or 0 for none",
    ),
)

_what_to_show = _arguments(
    _choice("-r", to="groupby", value="order", text="the same as --group-outputs=order"),
    _choice("-e", to="groupby", value="engine", text="the same as --group-outputs=engine"),
    argument(
        "--group-outputs",
        dest="groupby",
        choices=_GROUPINGS,
        help="type: all engines' stdout, then stderr, and so on; engine: everything from one engine together; "
        "order: like type, but with the first figures of all engines before the second ones; lines: show a line that "
        "several engines print only once",
    ),
    argument("-o", "--out", dest="save_name", type=str, help="the variable to store the AsyncResult in"),
)


_HELP = re.compile(r"\s*%(px\w*)[ \t]+(\S.*\?)\s*")


def _help_on_engines(lines: list[str]) -> list[str]:
    """`%px name?` as a question to the engines, which IPython would take for one about `%px`."""
    found = _HELP.fullmatch("".join(lines))
    if found is None:
        return lines
    return [f"get_ipython().run_cell_magic({found[1]!r}, '', {found[2]!r})\n"]


class ParallelMagics(Magics):
    """Magics that run code on the engines of `view`."""

    registered = True
    shell: Any

    def __init__(self, shell: Any, view: DirectView, suffix: str = "") -> None:
        self.view = view
        self.suffix = suffix
        self.last_result: AsyncResult | None = None
        # For cells started while a previous one runs: after one that raises, the rest is not run.
        self._chain = ""
        self.verbose: bool = False
        self.stream_output: bool = True
        self.progress_after: float = 2.0
        self.signal_on_interrupt: str | int = "SIGINT"
        px = f"px{suffix}"
        self._auto = f"auto{px}"
        line = {px: self.px, f"{px[:2]}result{suffix}": self.result, f"pxconfig{suffix}": self.pxconfig}
        line[self._auto] = self.autopx
        if not suffix:
            line["result"] = self.result
        self.magics: dict[str, dict[str, Any]] = {
            "line": line,
            "cell": {px: self.cell_px, self._auto: self.run_auto_cell},
        }
        self._is_auto = False
        super().__init__(shell=shell)

    @classmethod
    def register(cls, shell: Any, view: DirectView, suffix: str = "") -> ParallelMagics:
        """Registers magics with this suffix for `view`, in place of existing ones."""
        old = getattr(shell.magics_manager.magics["cell"].get(f"px{suffix}"), "__self__", None)
        if isinstance(old, cls):
            old._stop_auto()
        made = cls(shell, view, suffix)
        shell.magics_manager.register(made)
        EngineCompleter.install(shell)
        if _help_on_engines not in shell.input_transformers_cleanup:
            shell.input_transformers_cleanup.append(_help_on_engines)
        return made

    # %pxconfig and %pxresult --------------------------------------------------------------------

    @magic_arguments()
    @_how_to_run
    def pxconfig(self, line: str) -> None:
        """Sets the defaults of %px and %%px."""
        args = parse_argstring(self.pxconfig, line)
        if args.targets:
            self.view.targets = self._targets(args.targets)
        if args.block is not None:
            self.view.block = args.block
        if args.set_verbose is not None:
            self.verbose = args.set_verbose
        if args.stream is not None:
            self.stream_output = args.stream
        if args.progress_after is not None:
            self.progress_after = args.progress_after
        if args.signal_on_interrupt is not None:
            self.signal_on_interrupt = self._signal(args.signal_on_interrupt)

    @magic_arguments()
    @_what_to_show
    def result(self, line: str = "") -> None:
        """Waits for the last %px, and shows what it printed and returned, or raises what it raised.

        With -o, it only gives the result a name.
        """
        args = parse_argstring(self.result, line)
        if self.last_result is None:
            raise UsageError("there is no result yet: %pxresult shows the result of the last %px or %%px")
        if args.save_name:
            self.shell.user_ns[args.save_name] = self.last_result
            return
        with self._advising(self.last_result):
            self.last_result.show(
                stream=False, groupby=args.groupby or "type", signal_on_interrupt=self.signal_on_interrupt
            )

    # %px and %%px -------------------------------------------------------------------------------

    @no_var_expand
    def px(self, line: str = "") -> AsyncResult | None:
        """Runs a line on the engines: %px x = 1."""
        return self._run(line, Namespace())

    @magic_arguments()
    @_how_to_run
    @_what_to_show
    @argument("--local", action="store_true", help="also run the cell locally")
    def cell_px(self, line: str = "", cell: str = "") -> AsyncResult | None:
        """Runs the cell on the engines."""
        args = parse_argstring(self.cell_px, line)
        if not args.targets:
            return self._run(cell, args)
        with self.view.temp_flags(targets=self._targets(args.targets)):
            return self._run(cell, args)

    def _run(self, code: str, args: Namespace) -> AsyncResult | None:
        """Runs code with the given options and the defaults of `%pxconfig`; returns the result unless it waits."""

        def option(name: str, default: Any) -> Any:
            value = getattr(args, name, None)
            return default if value is None else value

        block = option("block", self.view.block)
        signal_on_interrupt = self._signal(option("signal_on_interrupt", self.signal_on_interrupt))
        groupby = option("groupby", "type")
        # Output by engine or in order can only be shown at the end.
        stream = option("stream", self.stream_output and groupby not in ("engine", "order"))
        if self.verbose:
            print(f"{'Parallel' if block else 'Async parallel'} execution on engine(s): {self._engines()}")
        last = self.last_result
        if last is None or last.ready():
            self._chain = uuid.uuid4().hex
        result = self.view.execute(code, silent=False, block=False, chain=self._chain)
        self.last_result = result
        if args_name := option("save_name", None):
            self.shell.user_ns[args_name] = result
        if getattr(args, "local", False):
            self.shell.run_cell(code)
        if not block:
            return result
        try:
            with self._advising(result):
                result.show(stream, groupby, option("progress_after", self.progress_after), signal_on_interrupt)
        except KeyboardInterrupt:
            # An interrupt before `show` waited, or a second one.
            if not result.ready():
                result.abort()
            raise
        return None

    @contextmanager
    def _advising(self, result: AsyncResult) -> Iterator[None]:
        """If engines lack a variable that this session has, says how they get it."""
        try:
            yield
        except RemoteError:
            names = self.shell.user_ns
            errors = (result.failure(part) for part in range(result.n_parts) if result.part_done(part))
            missing = {_missing_name(error) for error in errors if error is not None}
            for name in sorted(name for name in missing if name in names and not name.startswith("_")):
                client = next((key for key, value in names.items() if value is self.view.client), "client")
                print(f"{name!r} is a variable of this session, not of the engines. To push it to them: ", end="")
                print(f"{client}[:].push({{{name!r}: {name}}})")
            raise

    def _engines(self) -> str:
        targets = self.view.targets
        if isinstance(targets, list) and len(targets) > _NAMED_ENGINES:
            return f"{str(targets[:4])[:-1]}, ..., {str(targets[-4:])[1:]}"
        return str(targets)

    def _targets(self, text: str) -> Any:
        try:
            return parse_targets(text, self.view.client.ids)
        except (ValueError, IndexError) as error:
            raise UsageError(str(error)) from None

    def _signal(self, signal: str | int) -> str | int:
        return int(signal) if isinstance(signal, str) and signal.isdigit() else signal

    # %autopx ------------------------------------------------------------------------------------

    def autopx(self, line: str = "") -> None:
        """Runs every cell on the engines, as if it began with %%px, until it is called again."""
        if self._is_auto:
            self._stop_auto()
            print(f"%{self._auto} disabled")
            return
        self._is_auto = True
        self.shell.input_transformers_cleanup.insert(0, self._to_engines)
        print(f"%{self._auto} enabled")

    def _stop_auto(self) -> None:
        if self._is_auto:
            self._is_auto = False
            self.shell.input_transformers_cleanup.remove(self._to_engines)

    def _to_engines(self, lines: list[str]) -> list[str]:
        """Turns a cell into one that runs it on the engines; `%autopx` itself runs here."""
        cell = "".join(lines)
        if not cell.strip() or re.match(rf"\s*%{self._auto}\b", cell):
            return lines
        return [f"get_ipython().run_cell_magic({self._auto!r}, '', {cell!r})\n"]

    # IPython skips it when it checks whether a cell is complete.
    _to_engines.has_side_effects = True  # type: ignore[attr-defined]

    def run_auto_cell(self, line: str, cell: str) -> None:
        """Runs a cell of %autopx on the engines."""
        self._run(cell, Namespace())
