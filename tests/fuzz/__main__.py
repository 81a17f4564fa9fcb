"""The long run, guided by coverage: `make fuzz`. Needs atheris (requirements/fuzz.txt).

    python -m tests.fuzz [--seconds 120] [--folder build/fuzz] [FINDING ...]

Goes on from the corpus in the folder, which begins with seeds.py; a codec is compiled, and instrumented, when
its first input comes, so each is read once before the time begins. A finding (an error of another kind, an
input that takes more than TIMEOUT_S or more memory than Guard allows) is printed with its trace, kept as a
file in the folder, and the exit code is not 0. With files as arguments it runs those once.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import atheris

with atheris.instrument_imports(include=["millrace"], enable_loader_override=False):
    from millrace.protocol import compile as codec
    from tests.fuzz.targets import Guard

TIMEOUT_S = 10
MEMORY_MIB = 2048
INPUT_BYTES_MAX = 64 << 10


def load(text: str, names: dict[str, Any], filename: str, entry: str, *, plain: Any = codec.load) -> Any:
    """Codecs are made from declarations when they are first used: they are guided by coverage too."""
    made = plain(text, names, filename, entry)
    for value in list(names.values()):
        if isinstance(value, FunctionType) and value.__code__.co_filename == filename:
            atheris.instrument_func(value)
    return made


def main() -> None:
    codec.load = load
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--folder", default="build/fuzz")
    parser.add_argument("findings", nargs="*")
    options = parser.parse_args()
    folder = Path(options.folder)
    words = [
        sys.argv[0],
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={folder}/",
    ]
    if options.findings:
        words += options.findings
    else:
        corpus = folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        put_seeds(corpus)
        words += [
            f"-max_total_time={options.seconds}",
            f"-max_len={INPUT_BYTES_MAX}",
            "-print_final_stats=1",
            "-verbosity=0",
            str(corpus),
        ]
    guard = Guard()
    if not options.findings:
        print("making the codecs, a minute or two; the time given is for what comes then", flush=True)
        for path in corpus.iterdir():
            guard(path.read_bytes())
    atheris.Setup(words, guard)
    atheris.Fuzz()


def put_seeds(corpus: Path) -> None:
    from tests.fuzz.seeds import seeds

    for seed in seeds():
        (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)


if __name__ == "__main__":
    main()
