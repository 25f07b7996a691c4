"""Prints a package of uv.lock as a requirement of pip, with the hashes of its files. `make` and the
image install uv itself by it, before there is a program that reads the lock:

    python deploy/locked.py uv > uv.txt
    python -m pip install --require-hashes --requirement uv.txt
"""

import sys
import tomllib
from pathlib import Path


def requirement(lock: str, name: str) -> str:
    package = next(package for package in tomllib.loads(lock)["package"] if package["name"] == name)
    files = [*package["wheels"], *([package["sdist"]] if "sdist" in package else [])]
    return " ".join([f"{name}=={package['version']}", *(f"--hash={file['hash']}" for file in files)])


if __name__ == "__main__":
    print(requirement(Path("uv.lock").read_text(), sys.argv[1]))
