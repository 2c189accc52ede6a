"""``python -m tests.fuzz [NAME] [--seconds N]``: run one target, or each; with files: try these inputs only."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if not path.stem.startswith("test_"))
#: What the search for new ways looks at: our code, and the parser that it is compared with.
INSTRUMENTED = ["broker", "config", "h11"]
MAX_BYTES = 2048


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz")
    asked.add_argument("name", choices=NAMES, nargs="?")
    asked.add_argument("files", nargs="*", type=Path)
    asked.add_argument("--seconds", type=int, default=600)
    options = asked.parse_args()
    if options.name is None:
        one_by_one(options.seconds)
    elif options.files:
        target = importlib.import_module(f"tests.fuzz.{options.name}")
        for file in options.files:
            target.one_input(file.read_bytes())
    else:
        fuzz(options.name, options.seconds)


def one_by_one(seconds: int) -> None:
    """Run each target in a process of its own, whatever the others find."""
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(seconds)]
    failed = [name for name in NAMES if subprocess.run([*command, name], check=False).returncode]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the input is in .fuzz/NAME/")
    sys.stdout.write(f"nothing failed: {', '.join(NAMES)}, {seconds} s each\n")


def fuzz(name: str, seconds: int) -> None:
    """Run until the time is up or an input fails; atheris then ends the process with a status of its own."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: run `make fuzz` (Linux only)")
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = importlib.import_module(f"tests.fuzz.{name}")
    place = Path(".fuzz") / name
    corpus = place / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = place / "tokens"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in token) + '"\n' for token in target.TOKENS))
    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_BYTES}",
        f"-dict={words}",
        f"-artifact_prefix={place}/",
        "-timeout=5",
        "-rss_limit_mb=1024",
        "-print_final_stats=1",
        "-verbosity=1",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *arguments], target.one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
