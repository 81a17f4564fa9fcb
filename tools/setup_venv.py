"""Installs one pinned requirement set into the running environment and links the checkout as `millrace`.

Run by make with the environment's own interpreter. Installs nothing outside that environment. The link
(`millrace` -> this checkout, in site-packages) serves the interpreter, pytest and the type checker alike;
the command `bin/millrace` is written beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def install(requirement_set: str) -> None:
    requirements = CHECKOUT / "requirements" / f"{requirement_set}.txt"
    print(f"installing the {requirement_set} requirements ...", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--require-hashes", "-r", str(requirements)], check=True)


def link() -> None:
    site_packages = Path(sysconfig.get_path("purelib"))
    package = site_packages / "millrace"
    if package.is_symlink() and package.resolve() != CHECKOUT:
        package.unlink()
    if not package.exists():
        package.symlink_to(CHECKOUT, target_is_directory=True)
    script = Path(sys.executable).parent / "millrace"
    script.write_text(
        f"#!{sys.executable}\nfrom millrace.broker.__main__ import main\n\nraise SystemExit(main())\n"
    )
    os.chmod(script, 0o755)


if __name__ == "__main__":
    install(sys.argv[1])
    link()
