"""The parts of `make docker-test` that need no engine, and what it says where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.commands import Failed, run
from tests.docker.pages import KAFKA_PORT, image_name, pinned_names, python_snippet, read_compose
from tests.docker.single import snippet_lines
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_a_pages_snippet_is_its_first_block_of_python() -> None:
    """Blocks of other languages are none, and a page without one is refused."""
    page = "a\n```sh\nmake run\n```\n\n```python\nfor a in b:\n    pass\n```\n\n```python\nlater\n```\n"
    assert python_snippet(page) == "for a in b:\n    pass\n"
    with pytest.raises(ValueError, match="no block of Python"):
        python_snippet("```sh\nmake run\n```\n")


def test_the_readmes_snippet_is_a_program() -> None:
    """What `make docker-test` runs against the container compiles, serves at the compose file's port, and
    prints what the page says."""
    snippet = python_snippet(README)
    compile(snippet, "README.md", "exec")
    (single,) = read_compose((ROOT / "docker-compose.single.yml").read_text()).values()
    assert f'"{single.address(KAFKA_PORT)}"' in snippet
    assert f"It prints `{snippet_lines(0)[0]}` to `{snippet_lines(0)[-1]}`" in README


def test_pinned_requirements_are_known_by_their_normal_names() -> None:
    """Comments and hashes are none."""
    assert pinned_names("a.b_C==1 \\\n    --hash=sha256:12\n# d==1\ne==2 ; python_version < '3'\n") == {
        "a-b-c",
        "e",
    }


@pytest.mark.parametrize(("words", "name"), [(("docker", "compose"), "p-s"), (("docker-compose",), "p_s")])
def test_an_image_is_called_what_compose_looks_for(words: tuple[str, ...], name: str) -> None:
    """Both editions start it without building it."""
    assert image_name("p", "s", words) == name


def test_a_command_that_fails_is_told_with_its_last_words(capfd: pytest.CaptureFixture[str]) -> None:
    """What was to be shown is shown as it comes, all else only of a command that fails."""
    script = "echo Step 1; echo between; echo why >&2; exit 3"
    with pytest.raises(Failed, match=r"exit code 3 of: sh .*\n(?s:.*)why"):
        run(("sh", "-c", script), shown=re.compile("^Step"))
    assert capfd.readouterr().out == "  Step 1\n"
    assert run(("sh", "-c", "echo out; echo err >&2")) == "out\n"
    assert run(("sh", "-c", "echo out; exit 1"), codes=(0, 1)) == "out\n"


def test_without_an_engine_it_says_what_to_install(tmp_path: Path) -> None:
    """With exit code 2, which is not that of an image that fails."""
    env = {**os.environ, "PATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    words = [sys.executable, "-m", "tests.docker"]
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "apt-get install docker.io" in done.stdout
