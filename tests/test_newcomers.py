"""What a newcomer is told holds: links lead somewhere, targets, commands, tests and settings that pages and
helps name are there, and no page sends anybody to a distribution of somebody else's.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from millrace.broker.cli import COMMANDS
from millrace.broker.cli.serve import ABOUT, parse_options, read_settings
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        ROOT / "tests" / "README.md",
    ]
)
DAILY = {"setup", "setup-dev", "run", "lint", "types", "test", "quick"}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What installs `millrace` by this name, which is somebody else's on package indexes. Ours is millrace-kafka,
# or a checkout's folder.
INSTALLERS = r"\b(?:pip3?|pipx|uv|uvx|poetry|pdm|conda)\b[^\n`]*\b(?:install|add|run|tool|wheel|download)\b"
STRANGERS = re.compile(
    rf"{INSTALLERS}[^\n`]*[\s'\"]millrace(?![-/\w])|(?<![\w.-])millrace\[|(?<![\w.-])millrace ?(?:==|~=|>=)"
)
OURS = (
    "broker",
    "kraft",
    "protocol",
    "runtime",
    "s3stream",
    "spark_jobs",
    "testing",
    "wal",
    "tools",
    "requirements",
    "docs",
    "examples",
    ".ci",
)
TEXTS = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".in", ".txt", ".sh", ".java", ".js", ""}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def said_in(page: Path) -> Iterator[str]:
    """What a page gives as code: lines of its shell blocks, whole where they go on in the next, and what
    stands between backticks."""
    text = page.read_text()
    for language, block in FENCED.findall(text):
        if language == "sh":
            yield from re.sub(r"\\\n\s*", "", block).splitlines()
    yield from re.findall(r"`([^`]+)`", FENCED.sub("", text))


@cache
def targets() -> list[str]:
    """All that say what they do, in whatever letters."""
    return re.findall(r"^([^\s:#=]+):(?!=).*##", MAKEFILE, re.MULTILINE)


def test_make_help_shows_every_target_once_under_a_heading() -> None:
    """Daily ones first: a newcomer reads no further."""
    shown = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout
    groups = [group.splitlines() for group in shown.split("\n\n")]
    found = [line.split()[1] for _, *lines in groups for line in lines]
    assert Counter(found) == Counter(targets())
    assert [heading for heading, *_ in groups] == re.findall(r"^##@ (.*)", MAKEFILE, re.MULTILINE)
    assert len(groups) > 3
    assert {line.split()[1] for line in groups[0][1:]} >= DAILY


@pytest.mark.parametrize("target", ["test", "quick"])
def test_the_suite_finds_what_its_tests_need(target: str) -> None:
    """In a fresh checkout: the S3 server of the tests is built first, which the tests of a live broker
    start."""
    words = ["make", "--dry-run", "--always-make", target]
    told = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout
    assert 0 < told.find("cd tests/s3server") < told.find("-m pytest")


def test_pages_name_targets_that_exist() -> None:
    """Of `make TARGET`, in a block of shell lines or between backticks."""
    ruled = set(re.findall(r"^([a-z][a-z0-9-]*):(?!=)", MAKEFILE, re.MULTILINE))
    named = [
        (name_of(page), found[1].split()[0])
        for page in PAGES
        for text in said_in(page)
        if (found := re.match(r"\s*make ([a-z].*)", text))
    ]
    assert len(named) > 20
    assert [place for place in named if place[1] not in ruled] == []


def test_pages_name_commands_that_exist() -> None:
    """Of `millrace COMMAND`, in a block of shell lines or between backticks."""
    named = [
        (name_of(page), found[1])
        for page in PAGES
        for text in said_in(page)
        if (found := re.match(r"(?:\w+=\S+ )*millrace ([a-z]+)\b", text))
    ]
    assert len(named) > 20
    others = {"ready"}  # a line that `serve` prints
    assert [place for place in named if place[1] not in {*COMMANDS, *others}] == []


def test_contributing_names_tests_that_exist() -> None:
    """A file, or a function in it, behind pytest."""
    named = re.findall(r"\b(tests/[\w/]+)(\.py)?(?:::(\w+))?", "\n".join(said_in(ROOT / "CONTRIBUTING.md")))
    assert {bool(test) for _, _, test in named} == {True, False}
    for path, ending, test in named:
        assert (ROOT / f"{path}{ending}").exists(), path
        assert not test or f"def {test}(" in (ROOT / f"{path}{ending}").read_text(), test


def test_the_map_of_the_tests_names_what_exists() -> None:
    """Folders, files and modules; and each folder of tests is in it."""
    text = (ROOT / "tests" / "README.md").read_text()
    named = {name.partition("*")[0] for name in re.findall(r"`([a-z_][\w/.*]*)`", text)}
    missing = [
        name for name in named if not any(any((ROOT / base).glob(f"{name}*")) for base in ("tests", "."))
    ]
    assert missing == []
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - {name.partition("/")[0] for name in named} == set()


def examples() -> dict[str, tuple[str, str]]:
    """Each `millrace serve` with words behind it, by itself: where it stands, and whether what follows after
    a gap is a remark."""
    about = re.sub(r"\\\n\s*", "", ABOUT)
    found = {
        line.strip(): "serve --help"
        for line in about.splitlines()
        if re.match(r"  (\w+=\S+ )*millrace serve", line)
    }
    for page in PAGES:
        found |= {
            text: name_of(page) for text in said_in(page) if re.match(r"(\w+=\S+ )*millrace serve .", text)
        }
    return {f"{place}: {text}": (place, text) for text, place in found.items()}


@pytest.mark.parametrize(("place", "text"), examples().values(), ids=examples())
def test_an_example_of_serve_is_obeyed(
    place: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its words and its variables parse, and make settings without a mistake or a warning."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.properties").write_text("node.id=1\n")
    words = shlex.split(re.split(r"\s{3,}", text)[0], comments=True)
    begin = words.index("millrace")
    variables = dict(word.split("=", 1) for word in words[:begin])
    assert words[begin + 1] == "serve"
    found = read_settings(parse_options(words[begin + 2 :]), variables)
    assert not found.warnings, place


def test_serve_has_examples() -> None:
    """In its help, and in README.md."""
    places = Counter(place for place, _ in examples().values())
    assert places["serve --help"] >= 4
    assert places["README.md"] >= 1


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are shown on the web."""
    headings = re.findall(r"^#+ (.*)", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    """To files of the checkout, and to headings in them."""
    broken, count = [], 0
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", FENCED.sub("", page.read_text())):
            count += 1
            path, _, anchor = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            if not place.exists() or (anchor and anchor not in slugs(place)):
                broken.append(f"{name_of(page)}: {target}")
    assert count > 50
    assert broken == []


def texts() -> Iterator[Path]:
    """What a user may read: documents, messages, examples, what builds; not tests, nor what was installed or
    built."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.suffix in TEXTS)
    for folder in OURS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in TEXTS)


def test_nobody_is_sent_to_a_strangers_distribution() -> None:
    """No text names `millrace` as what to install, with extras or without."""
    found = [
        f"{name_of(path)}: {line.strip()}"
        for path in texts()
        for line in path.read_text().splitlines()
        if STRANGERS.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_strange"),
    [
        ("pip install millrace", True),
        ("run pip3 install --upgrade 'millrace[spark]' first", True),
        ("`uv add millrace`", True),
        ("python -m pip install millrace, then", True),
        ("needs millrace[spark]", True),
        ("millrace==0.1.0", True),
        ("pip install 'millrace-kafka[spark]'", False),
        ("pip install millrace-kafka", False),
        ("pip install ./millrace/", False),
        ("`pip install .`, then `millrace serve`", False),
        ("millrace-kafka==0.1.0", False),
        ("uv run pytest tests/millrace_test.py", False),
    ],
)
def test_a_strangers_distribution_is_seen(line: str, is_strange: bool) -> None:
    """The rule itself, by what it refuses and what it lets pass."""
    assert bool(STRANGERS.search(line)) == is_strange


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/testing.md"])
def test_the_pages_that_tell_of_installing_name_ours(page: str) -> None:
    """And say whose the shorter name is."""
    text = " ".join((ROOT / page).read_text().split())
    assert "The distribution is" in text
    assert "`millrace-kafka`" in text
    assert "`millrace` on PyPI is somebody else's" in text
