"""The layout of DESIGN.md, held true: which room may use which, and how large its parts may grow."""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = ("terminal", "errors", "config", "data", "model", "engine", "interop")  # each may use what is to its left
COMMANDS = ("train", "sample", "evaluate", "export", "visualize")
COMMANDS_USED = {("train.py", "evaluate")}  # training measures its val loss as the command does
TORCH = ("torch", "transformers", "wandb", "tensorboard")  # slow to import
WITHOUT_TORCH = (
    "terminal.py",
    "errors.py",
    "config/",
    "data/sources.py",
    "data/download.py",
    "data/tokenizer.py",
    "data/store.py",
)
WITHOUT_TORCH += ("data/text.py", "data/folders.py", "data/compressed.py", "data/recognize.py")
WITHOUT_TORCH += (
    "data/standard_input.py",
    "data/prepare.py",
    "data/unicode.py",
    "data/cuts.py",
    "data/bpe.py",
    "data/published.py",
    "data/paths.py",
    "data/durable.py",
    "data/corpus.py",
    "data/vocabulary.py",
    "data/passes.py",
    "data/memory.py",
    "data/saved_tokenizer.py",
)
WITHOUT_TORCH += ("engine/files.py", "engine/lock.py", "engine/new_run.py", "engine/run_folder.py")
WITHOUT_TORCH += ("engine/output.py", "engine/tensorboard.py")
MAX_FILE_LINES, MAX_COMMAND_LINES = 350, 400
MAX_FUNCTION_LINES, MAX_LOOP_LINES = 60, 80
# The three boundaries to libraries that may fail in any way; each says so in a comment.
BROAD_EXCEPT_ALLOWED = ("engine/runtime.py", "engine/dashboard.py", "data/published.py")

SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.py", *(f"{room}/*.py" for room in ORDER))
    for path in ROOT.glob(pattern)
)


@functools.cache
def tree(source: str) -> ast.Module:
    return ast.parse((ROOT / source).read_text(encoding="utf-8"), source)


def imports(source: str, *, only_at_import: bool = False) -> Iterator[str]:
    """The modules that a file imports, in full."""
    nodes = ast.walk(tree(source)) if not only_at_import else executed_at_import(tree(source))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}:{node.lineno}: a relative import hides which room is meant"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def executed_at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from executed_at_import(child)


def room_of(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".").partition(".")[0]


def our_imports(source: str) -> set[str]:
    return {room_of(name) for name in imports(source)} & {*ORDER, *COMMANDS}


def test_the_rooms_that_design_names_are_all_the_python_there_is() -> None:
    assert {room_of(source) for source in SOURCES} <= {*ORDER, *COMMANDS}
    assert {"errors", "config", "data", "model", "engine", "interop", "train", "sample", "export"} <= {
        room_of(s) for s in SOURCES
    }


@pytest.mark.parametrize("source", SOURCES)
def test_arrows_go_one_way(source: str) -> None:
    room = room_of(source)
    for used in our_imports(source) - {room}:
        if used in COMMANDS:
            assert (source, used) in COMMANDS_USED, f"{source} imports the command {used}.py"
        elif room not in COMMANDS:
            assert ORDER.index(used) < ORDER.index(room), f"{source} imports {used}, which is to its right"


@pytest.mark.parametrize("source", [source for source in SOURCES if source.startswith(WITHOUT_TORCH)])
def test_what_reports_a_bad_recipe_needs_no_torch(source: str) -> None:
    reached, left = {source}, [source]
    while left:
        for name in imports(left.pop(), only_at_import=True):
            assert not name.partition(".")[0].startswith(TORCH), f"{source} reaches {name}"
            parts = name.split(".")
            files = {f"{'/'.join(parts[:length])}.py" for length in range(1, len(parts) + 1)}
            new = files & {*SOURCES} - reached
            reached |= new
            left += new


def test_wandb_and_tiktoken_are_not_imported_before_they_are_wanted() -> None:
    for source in SOURCES:
        at_import = {name.partition(".")[0] for name in imports(source, only_at_import=True)}
        assert not at_import & {"wandb", "tiktoken", "rustbpe"}, source


def test_every_source_file_has_its_test_file() -> None:
    named = [source for source in SOURCES if not source.endswith("__init__.py")]
    missing = [source for source in named if not (ROOT / "tests" / f"test_{Path(source).name}").is_file()]
    assert missing == []


def test_no_two_source_files_share_a_test_file() -> None:
    names = [Path(source).name for source in SOURCES if not source.endswith("__init__.py")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("source", SOURCES)
def test_a_file_is_small_enough_to_be_read_at_a_sitting(source: str) -> None:
    limit = MAX_COMMAND_LINES if "/" not in source else MAX_FILE_LINES
    assert len((ROOT / source).read_text(encoding="utf-8").splitlines()) <= limit


@pytest.mark.parametrize("source", SOURCES)
def test_a_function_is_small_enough_to_be_seen_at_once(source: str) -> None:
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            limit = MAX_LOOP_LINES if (source, node.name) == ("train.py", "train") else MAX_FUNCTION_LINES
            assert node.end_lineno - node.lineno < limit, f"{source}:{node.lineno}: {node.name}"


@pytest.mark.parametrize("source", SOURCES)
def test_no_except_is_bare_or_broad_but_at_the_three_boundaries(source: str) -> None:
    lines = (ROOT / source).read_text(encoding="utf-8").splitlines()
    for node in ast.walk(tree(source)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = {ast.unparse(name) for name in ast.walk(node.type)} if node.type is not None else {"BaseException"}
        if names & {"Exception", "BaseException"}:
            where = f"{source}:{node.lineno}"
            assert source in BROAD_EXCEPT_ALLOWED, where
            assert "BaseException" not in names, f"{where}: would swallow Ctrl-C"
            assert "BLE001 - " in lines[node.lineno - 1], f"{where}: no comment says why"


@pytest.mark.parametrize("source", SOURCES)
def test_no_room_has_side_effects_at_import(source: str) -> None:
    """At the top level nothing is called for its effect; commands start under `if __name__ == "__main__"`."""
    for node in tree(source).body:
        assert not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)), f"{source}:{node.lineno}"
        if isinstance(node, ast.If):
            assert ast.unparse(node.test) in ("__name__ == '__main__'", "TYPE_CHECKING"), f"{source}:{node.lineno}"


@pytest.mark.parametrize("source", SOURCES)
def test_a_file_says_what_it_is_responsible_for(source: str) -> None:
    if (ROOT / source).stat().st_size > 0:
        assert ast.get_docstring(tree(source)), source


def requirements(file: str) -> dict[str, str]:
    """The libraries of a file of requirements, each pinned and with its reason, and their versions."""
    required = {}
    for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
        requirement, _, reason = line.partition("#")
        name, pinned, version = requirement.strip().partition("==")
        assert pinned, line
        assert version, line
        assert reason.strip(), line
        required[name.lower()] = version
    return required


def libraries(source: str, *, only_at_import: bool = False) -> set[str]:
    """The libraries that a file imports, by the names under which they are installed."""
    # Where the import has another name, and what pydantic gives out as part of its own interface.
    distributions = {"yaml": "pyyaml", "pydantic_core": "pydantic", "annotated_types": "pydantic"}
    distributions |= {"backports": "backports.zstd", "charset_normalizer": "charset-normalizer"}
    python = {*sys.stdlib_module_names, "compression"}  # new in Python 3.14
    imported = {name.partition(".")[0] for name in imports(source, only_at_import=only_at_import)}
    return {distributions.get(name, name) for name in imported - {*python, *ORDER, *COMMANDS}}


def test_every_library_that_is_imported_is_required_and_pinned_with_a_reason() -> None:
    """One that only comes along with another would be missing the day the other drops it."""
    used = {library for source in SOURCES for library in libraries(source)}
    required, optional = requirements("requirements.txt"), requirements("requirements-optional.txt")
    assert used <= required.keys() | optional.keys()
    assert not required.keys() & optional.keys()


def test_what_is_optional_is_not_imported_before_it_is_wanted() -> None:
    optional = requirements("requirements-optional.txt").keys()
    for source in SOURCES:
        assert not libraries(source, only_at_import=True) & optional, source


def test_the_tests_need_what_is_optional() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    assert {"-r requirements.txt", "-r requirements-optional.txt"} <= {*lines}
