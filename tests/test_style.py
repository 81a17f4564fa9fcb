"""What STYLE.md promises beyond layers and sizes, as a test: errors that are named, orders that are fixed,
state that is owned, words that were retired, and subjects of commits. Each rule is shown a fault that it sees
and code that it passes.

It reads the source as syntax trees; it imports nothing of the project.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_tidy import ROOT, name_of, sources, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Raised for Python's own protocols, or for a defect.
UNTOLD_ERRORS = frozenset(("AssertionError", "NotImplementedError", "StopAsyncIteration", "StopIteration"))
TELLS = re.compile(r"\b([Rr]ais|[Rr]efus|[Ff]ail)")

SET_TYPE = re.compile(r"((ClassVar|Final)\[)?(set|frozenset|AbstractSet|MutableSet|Set)\b")
SET_METHODS = ("difference", "intersection", "symmetric_difference", "union")
ORDERED_CALLS = ("enumerate", "iter", "list", "map", "next", "reversed", "tuple", "zip")
ORDERED_METHODS = ("extend", "fromkeys", "join")
ORDER_FREE = ("all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum")

CONTAINERS = frozenset(
    ("Counter", "OrderedDict", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "bytearray",
    "defaultdict", "deque",
     "dict", "list", "set")
)  # fmt: skip
CHANGES = frozenset(
    ("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft",
    "remove",
     "setdefault", "update")
)  # fmt: skip
# Containers of a module that functions change, with the reason.
RUNNER_KEPT = frozenset(("ContextVar", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "local"))
BY_RUNNER = re.compile(
    r"((ClassVar|Final)\[)?(Weak\w+|ContextVar|\w*([Dd]ict|[Mm]apping|[Ss]et)\[\W*(asyncio\.)?(AbstractEventLoop|Task)\b)"
)
COMPILED_ONCE = "compiled on first use, the same whoever asks first"
SHARED_CONTAINERS = {
    ("protocol/codec.py", "_request_decoders"): COMPILED_ONCE,
    ("protocol/codec.py", "_response_encoders"): COMPILED_ONCE,
    ("protocol/codec.py", "_yielding_decoders"): COMPILED_ONCE,
    ("protocol/codec.py", "_yielding_encoders"): COMPILED_ONCE,
    ("protocol/declare.py", "_fields_by_class"): COMPILED_ONCE,
    ("runtime/buffer_pool.py", "_EXPORTERS"): COMPILED_ONCE,
    ("testing/ports.py", "_given"): "ports are the machine's, whoever draws them in this process",
}

# Whole identifiers, and words within them, that GLOSSARY.md has another word for.
RETIRED_NAMES = frozenset(
    ("Aside", "BrokerHouse", "FairPlaces", "House", "StepLine", "Turns", "Vandal", "begin_to_owe",
    "end_owing", "forgive", "in_slices", "in_steps", "is_aside", "is_deep", "is_quiet", "is_void", "let_go",
    "line_of", "owed_count", "passed_over", "put_aside", "spoilers", "stand_at", "tell_end", "vandal")
)  # fmt: skip
RETIRED_WORDS = re.compile(
    r"doom|harvest|shelf|shelves|_in_(slices|steps)$|_a_(slice|step|turn)$", re.IGNORECASE
)
# A log that is an example of one that others write: it has the name to itself.
OTHERS_WORDS = ("tests/wal/shelf/", "tests/wal/test_contract.py", "tests/broker/test_third_wal.py")

COLUMNS = 110
COMMITS = 20
SUBJECT_LENGTH_MAX = 72
SUBJECT = re.compile(r"[a-z0-9_./-]+(, [a-z0-9_./-]+)*: [a-z]\S* \S.*[^.\s]")


def public_functions(body: list[ast.stmt]) -> Iterator[Function]:
    for node in body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body)


def error_name(node: ast.expr | None) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def caught(node: ast.Try) -> frozenset[str]:
    kinds = [handler.type for handler in node.handlers]
    kinds = [one for kind in kinds for one in (kind.elts if isinstance(kind, ast.Tuple) else [kind])]
    return frozenset(error_name(kind) for kind in kinds)


def raised(nodes: list[ast.AST], held: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names of the errors that statements raise themselves and that no handler around them catches by that
    name."""
    for node in nodes:
        if isinstance(node, Function | ast.Lambda | ast.ClassDef):
            continue
        if (
            isinstance(node, ast.Raise)
            and error_name(node.exc)[:1].isupper()
            and error_name(node.exc) not in held
        ):
            yield error_name(node.exc)
        if isinstance(node, ast.Try):
            yield from raised([*node.body], held | caught(node))
            yield from raised([*node.handlers, *node.orelse, *node.finalbody], held)
        else:
            yield from raised(list(ast.iter_child_nodes(node)), held)


def untold_errors(tree: ast.Module) -> list[tuple[int, str]]:
    found = []
    for function in public_functions(tree.body):
        kinds = frozenset(raised([*function.body])) - UNTOLD_ERRORS
        told = ast.get_docstring(function) or ""
        if kinds and not TELLS.search(told) and not any(kind in told for kind in kinds):
            found.append((function.lineno, f"{function.name} raises {', '.join(sorted(kinds))}"))
    return found


def is_set(node: ast.expr, names: frozenset[str]) -> bool:
    """Whether an expression is a set, as far as the file tells. `names`: those annotated as one, an
    attribute's with a dot before it."""
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        sides = (node.left, node.right)
        return any(is_set(side, names) or (isinstance(side, ast.Call) and is_keys(side)) for side in sides)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in SET_METHODS and is_set(node.func.value, names)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    if isinstance(node, ast.Attribute):
        return f".{node.attr}" in names
    return isinstance(node, ast.Name) and node.id in names


def is_keys(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "keys" and not node.args


def set_names(node: ast.AST) -> list[str]:
    """Names that an argument or an assignment makes those of sets, an attribute's with a dot before it."""
    if isinstance(node, ast.arg):
        is_one = node.annotation is not None and SET_TYPE.match(ast.unparse(node.annotation)) is not None
        return [node.arg] if is_one else []
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return []
    is_one = node.value is not None and is_set(node.value, frozenset())
    if isinstance(node, ast.AnnAssign):
        is_one = is_one or SET_TYPE.match(ast.unparse(node.annotation)) is not None
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    found = [target.id for target in targets if is_one and isinstance(target, ast.Name)]
    return found + [f".{target.attr}" for target in targets if is_one and isinstance(target, ast.Attribute)]


def names_of_sets(tree: ast.Module) -> frozenset[str]:
    found = {name for node in ast.walk(tree) for name in set_names(node)}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found |= {f".{name}" for one in classes for node in one.body for name in set_names(node)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names} & sets_of(node.module or "")
    return frozenset(found)


@cache
def sets_of(module: str) -> frozenset[str]:
    """Those that a module of ours has at its top."""
    path = ROOT / f"{module.removeprefix('millrace.').replace('.', '/')}.py"
    body = tree_of(path).body if module.startswith("millrace.") and path.exists() else []
    return frozenset(name for node in body for name in set_names(node))


def order_seen(node: ast.AST) -> list[ast.expr]:
    """What `node` goes through in an order that can be seen."""
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.iter]
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
        return [generator.iter for generator in node.generators]
    if isinstance(node, ast.List | ast.Tuple):
        return [element.value for element in node.elts if isinstance(element, ast.Starred)]
    if isinstance(node, ast.YieldFrom):
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDERED_CALLS:
        return node.args
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "pop" and not node.args:
            return [node.func.value]
        return node.args if node.func.attr in ORDERED_METHODS else []
    return []


def seen_orders(tree: ast.Module) -> list[tuple[int, str]]:
    names = names_of_sets(tree)
    free = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_FREE
        for argument in node.args
    }
    return [
        (seen.lineno, ast.unparse(seen))
        for node in ast.walk(tree)
        if id(node) not in free
        for seen in order_seen(node)
        if is_set(seen, names)
    ]


def is_container(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Call):
        return error_name(node) in CONTAINERS
    return isinstance(node, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


def containers_of(tree: ast.Module) -> frozenset[str]:
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_container(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


def changed_names(node: ast.AST) -> list[str]:
    """Names whose value, not whose meaning, a statement or a call changes."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target.value] if isinstance(node.target, ast.Subscript) else []
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        targets = [node.func.value]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def own_names(function: Function) -> frozenset[str]:
    found = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return frozenset(found | {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)})


def shared_state(tree: ast.Module) -> list[tuple[int, str]]:
    """Where a function changes a container of its module, and where it says `global`."""
    containers = containers_of(tree)
    found = []
    for function in ast.walk(tree):
        if isinstance(function, Function):
            shared = containers - own_names(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Global):
                    found.append((node.lineno, "global"))
                found += [(function.lineno, name) for name in changed_names(node) if name in shared]
    return found


def kept_by_runner(tree: ast.Module) -> list[tuple[int, str]]:
    """What a module or a class keeps for the loop or the task that runs: found by whoever runs there, it is
    handed to nobody."""
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    found = []
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.AnnAssign):
            kind = ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign):
            kind = ""
        else:
            continue
        if error_name(node.value) in RUNNER_KEPT or BY_RUNNER.match(kind):
            found.append((node.lineno, ast.unparse(node).partition("\n")[0]))
    return found


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg is not None):
            yield node.lineno, str(node.arg)
        elif isinstance(node, Function | ast.ClassDef):
            yield node.lineno, node.name


def retired(tree: ast.Module) -> list[tuple[int, str]]:
    return [
        (line, word)
        for line, word in identifiers(tree)
        if word.lstrip("_") in RETIRED_NAMES or RETIRED_WORDS.search(word)
    ]


@cache
def sources_of_tests() -> tuple[Path, ...]:
    return tuple(path for path in sorted((ROOT / "tests").rglob("*.py")) if "__pycache__" not in path.parts)


def is_subject(text: str) -> bool:
    return len(text) <= SUBJECT_LENGTH_MAX and SUBJECT.fullmatch(text) is not None


def test_public_functions_name_the_errors_that_they_raise() -> None:
    """Who calls one learns from its docstring what may come out of it."""
    faults = [
        f"{name_of(path)}:{line} {what}" for path in sources() for line, what in untold_errors(tree_of(path))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "def read(): raise LogCorrupt('x')",
        "def read():\n    'Reads it.'\n    raise LogCorrupt('x')",
        "class Log:\n    async def read(self):\n        if self.end: raise errors.LogCorrupt",
        "def read():\n    try:\n        act()\n    except OSError as error:\n        raise LogCorrupt from "
        "error",
    ],
)
def test_an_error_that_is_not_named_is_seen(source: str) -> None:
    """The rule itself refuses what it should."""
    assert untold_errors(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "def read():\n    'Raises LogCorrupt where it is cut off.'\n    raise LogCorrupt('x')",
        "def read():\n    'LogCorrupt for none.'\n    raise LogCorrupt('x')",
        "def _read(): raise LogCorrupt('x')",
        "class _Log:\n    def read(self): raise LogCorrupt('x')",
        "def read():\n    try:\n        raise ValueError\n    except (KeyError, ValueError):\n        return",
        "def read():\n    try:\n        act()\n    except OSError as error:\n        act()\n        raise",
        "def read(): raise NotImplementedError",
        "def read():\n    def visit(): raise LogCorrupt('x')\n    return visit",
    ],
)
def test_an_error_that_is_named_or_stays_inside_passes(source: str) -> None:
    """So does one that is not the caller's to handle, and one of a function that is private."""
    assert not untold_errors(ast.parse(source))


def test_nobody_sees_the_order_of_a_set() -> None:
    """A run that is repeated from its seed takes the same turns, whatever the hashes of strings are."""
    faults = [
        f"{name_of(path)}:{line} goes through {what}"
        for path in sources()
        for line, what in seen_orders(tree_of(path))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "for one in {1, 2}: act(one)",
        "def act(ids: set[int]): return [one for one in ids]",
        "def act(ids: frozenset[int]): return {one: 0 for one in ids}",
        "ids = set(found)\nfirst = next(iter(ids))",
        "class Table:\n    ids: set[int]\n    def act(self): return list(self.ids)",
        "class Table:\n    def __init__(self): self.ids = set()\n    def act(self): return list(self.ids)",
        "ids: Final = frozenset(found)\nshown = tuple(ids - {3})",
        "for one in table.keys() - known: act(one)",
        "ids: set[str] = set()\ntext = ', '.join(ids)",
        "ids: set[str] = set()\nall_of_them = [*ids, 'x']",
        "ids: set[str] = set()\none = ids.pop()",
        "ids = set(found)\nfor place, one in enumerate(ids.union(others)): act(one)",
        "def act(ids: set[int]): yield from ids",
    ],
)
def test_a_set_whose_order_is_seen_is_seen(source: str) -> None:
    """The rule itself refuses what it should."""
    assert seen_orders(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "ids = set(found)\nfor one in sorted(ids): act(one)",
        "ids = set(found)\nis_any = any(one > 3 for one in ids) or len(ids) > 3 or max(ids) > 7 or sum(ids) "
        "> 9",
        "ids = set(found)\nmore = {one + 1 for one in ids} | frozenset(one + 2 for one in ids)",
        "ids = dict.fromkeys(found)\nfor one in ids: act(one)",
        "for one in table.keys(): act(one)",
        "stack: list[int] = []\none = stack.pop()",
    ],
)
def test_a_set_whose_order_is_not_seen_passes(source: str) -> None:
    """Sorted, counted, or made another set; and dicts, which keep their order."""
    assert not seen_orders(ast.parse(source))


def test_modules_keep_no_state() -> None:
    """State belongs to an object that somebody made and ends: a second broker in a process has its own. The
    exceptions are those that are listed, with their reasons, and none that is no more."""
    found = [(name_of(path), line, what) for path in sources() for line, what in shared_state(tree_of(path))]
    faults = [
        f"{name}:{line} changes {what}" for name, line, what in found if (name, what) not in SHARED_CONTAINERS
    ]
    assert not faults, "\n".join(faults)
    assert sorted(SHARED_CONTAINERS) == sorted({(name, what) for name, _, what in found})


@pytest.mark.parametrize(
    "source",
    [
        "COUNT = 0\ndef act():\n    global COUNT\n    COUNT += 1",
        "_seen: dict[str, int] = {}\ndef act(name): _seen[name] = 1",
        "_seen = {}\ndef act(name): del _seen[name]",
        "_seen = defaultdict(int)\ndef act(name): _seen[name] += 1",
        "_queue: deque[int] = deque()\nclass Log:\n    def act(self): self.x = _queue.popleft()",
        "_seen = WeakKeyDictionary()\nasync def act(task): _seen.setdefault(task, 1)",
    ],
)
def test_state_of_a_module_is_seen(source: str) -> None:
    """The rule itself refuses what it should."""
    assert shared_state(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "TABLE = {}\nfor name in NAMES: TABLE[name] = 1\ndef act(name): return TABLE[name]",
        "seen = {}\ndef act(seen): seen[1] = 2",
        "seen = {}\ndef act():\n    seen = []\n    seen.append(1)",
        "class Log:\n    def act(self): self.seen[1] = 2",
    ],
)
def test_state_of_an_object_passes(source: str) -> None:
    """So does a table that is made while the module is loaded, and a name that means something else within a
    function."""
    assert not shared_state(ast.parse(source))


def test_nothing_is_kept_for_the_loop_or_task_that_runs() -> None:
    """What is one for a loop or a task is made by who composes, and handed in."""
    faults = [
        f"{name_of(path)}:{line} {what}" for path in sources() for line, what in kept_by_runner(tree_of(path))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "_LINES: WeakKeyDictionary[asyncio.AbstractEventLoop, StepLine] = WeakKeyDictionary()",
        "_work = weakref.WeakKeyDictionary()",
        "class Work:\n    by_task: ClassVar[dict[asyncio.Task[object], Work]] = {}",
        "work: dict['asyncio.Task[None]', int] = {}",
        "current = ContextVar('current')",
    ],
)
def test_what_is_kept_for_who_runs_is_seen(source: str) -> None:
    """The rule itself refuses what it should."""
    assert kept_by_runner(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "class Log:\n    def __init__(self): self._tasks: dict[asyncio.Task[None], None] = {}",
        "class Parts:\n    yield_queue: YieldQueue",
        "OPENERS: dict[str, Opener] = {}",
    ],
)
def test_what_an_object_keeps_of_its_tasks_passes(source: str) -> None:
    """Its own tasks are no business of others."""
    assert not kept_by_runner(ast.parse(source))


def test_retired_words_stay_retired() -> None:
    """GLOSSARY.md has one word for a thing: no identifier of the product or its tests has one that was given
    up for it."""
    faults = [
        f"{name_of(path)}:{line} {word}"
        for path in (*sources(), *sources_of_tests())
        if not name_of(path).startswith(OTHERS_WORDS)
        for line, word in retired(tree_of(path))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "class BrokerHouse: pass",
        "def _let_go(): pass",
        "self._doomed_bytes = 1",
        "def act(is_aside: bool): pass",
        "act(harvest_ms=1)",
        "shelves = Shelf()",
    ],
)
def test_a_retired_word_is_seen(source: str) -> None:
    """The rule itself refuses what it should, in every sort of name."""
    assert retired(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    ["warehouse = Warehouse()", "def test_what_was_let_go_is_counted(): 'Doomed.'", "Piece(is_avoidable=1)"],
)
def test_other_words_pass(source: str) -> None:
    """What only looks like one, a test's sentence, and prose."""
    assert not retired(ast.parse(source))


def test_prose_has_110_columns() -> None:
    """As code has; tables and what is shown as code are as wide as they are."""
    faults = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]:
        for number, line in enumerate(prose_of(path.read_text(encoding="utf-8")), 1):
            if len(line) > COLUMNS:
                faults.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} columns")
    assert not faults, "\n".join(faults)


def prose_of(page: str) -> Iterator[str]:
    """Lines of a page in Markdown, in the place of tables and code empty ones."""
    is_code = False
    for line in page.splitlines():
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        yield "" if is_code or is_fence or line.startswith(("|", "    ")) else line


def test_prose_is_told_from_tables_and_code() -> None:
    """What is judged is what is read as sentences."""
    page = "one\n| a | table |\n```sh\ncode\n```\n    shown\ntwo"
    assert list(prose_of(page)) == ["one", "", "", "", "", "", "two"]


def test_commits_have_subjects() -> None:
    """`component: verb object`, in as many columns as `git log --oneline` shows."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout: no commits")
    command = ["git", "-c", f"safe.directory={ROOT}", "log", "--no-merges", f"-{COMMITS}", "--format=%s"]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert [subject for subject in told.splitlines() if not is_subject(subject)] == []


@pytest.mark.parametrize(
    "subject",
    [
        "fix things",
        "kraft: Fix the vote.",
        "kraft: fix",
        "Kraft: fix the vote",
        "kraft, : fix the vote",
        "kraft: " + "fix the vote " * 6,
    ],
)
def test_a_subject_that_is_none_is_seen(subject: str) -> None:
    """The rule itself refuses what it should."""
    assert not is_subject(subject)


@pytest.mark.parametrize(
    "subject", ["kraft: end a stale vote", "broker, wal: bound the queue", "tests/sim: plant a lost write"]
)
def test_a_subject_passes(subject: str) -> None:
    """One component, several, or a folder of one."""
    assert is_subject(subject)
