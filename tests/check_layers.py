#!/usr/bin/env python3
"""Who may include whom under src/: fails, naming the line, on any include that the table does not allow.

    python3 tests/check_layers.py [--root DIR]
    python3 tests/check_layers.py --self-test

Arrows only point left: base <- tensor <- kernels <- ops <- models <- engine <- chat <- server, tools, with checkpoint and
cache beside kernels, serviceability behind checkpoint, and text and media beside them all. Up to models a folder sees whatever
its arrows reach. Above that the doors are narrow: an entry with a slash is one header of another folder, not the whole folder.
"""

import argparse
import pathlib
import re
import sys
import tempfile

ALLOWED = {
    "base": set(),
    "tensor": {"base"},
    "text": {"base"},
    "media": {"base"},
    "checkpoint": {"base", "tensor"},
    "cache": {"base", "tensor"},
    "kernels": {"base", "tensor"},
    "ops": {"base", "tensor", "kernels"},
    "models": {"base", "tensor", "kernels", "checkpoint", "cache", "ops"},
    "serviceability": {"base", "tensor", "checkpoint"},
    "engine": {"base", "cache", "ops", "models/model.h", "models/batch.h"},
    "chat": {"base", "engine", "text", "media"},
    "server": {"base", "chat"},
}
ALLOWED["tools"] = set(ALLOWED)
PROGRAM = {"tools"} | set(ALLOWED)  # src/main.cc builds the objects and hands them on

# Headers that few files may see, so that the rest of the tree knows nothing of what is behind them.
READERS = {"textcore.h": ("src/text/rust_bridge.cc", "src/media/decode.cc")}

# Third-party headers stay behind a type of ours: never in a header of src/. Only the prefix of the include is compared.
THIRD_PARTY = ("nlohmann/", "boost/", "CLI/", "spdlog/", "fmt/", "prometheus/", "xxhash")

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
SOURCES = {".h", ".cc", ".inc"}


def permitted(folder, target):
    """Whether src/FOLDER may include TARGET, a path whose first part is a folder of src/."""
    owner = target.split("/", 1)[0]
    if folder == "":
        return owner in PROGRAM
    return owner == folder or owner in ALLOWED[folder] or target in ALLOWED[folder]


def complaints_of_line(path, folder, line, is_header):
    match = INCLUDE.match(line)
    if not match:
        return
    bracket, target = match.groups()
    name = target.rsplit("/", 1)[-1]
    if ".." in target.split("/"):
        yield "includes are written from src/, never with .."
    elif name in READERS and path not in READERS[name]:
        yield f"only {' and '.join(READERS[name])} may include {name}"
    elif bracket == '"' and "/" in target and target.split("/", 1)[0] in ALLOWED:
        if not permitted(folder, target):
            allowed = ", ".join(sorted(ALLOWED.get(folder, PROGRAM))) or "nothing else"
            yield f"{folder or 'main.cc'} may include {allowed}"
    elif is_header and target.startswith(THIRD_PARTY):
        yield "third-party headers belong in a .cc, behind a type of ours"


def check(root):
    """All complaints about the tree at ROOT, as lines for people and editors."""
    found = []
    for file in sorted((root / "src").rglob("*")):
        if file.suffix not in SOURCES:
            continue
        path = file.relative_to(root).as_posix()
        parts = path.split("/")
        folder = parts[1] if len(parts) > 2 else ""
        if folder and folder not in ALLOWED:
            found.append(f"{path}:1: folder '{folder}' is not in the table of tests/check_layers.py")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for why in complaints_of_line(path, folder, line, file.suffix != ".cc"):
                found.append(f"{path}:{number}: {line.strip()}   ({why})")
    return found


SELF_TEST = [  # file, line, whether it is a complaint
    ("src/base/a.cc", '#include "tensor/dtype.h"', True),
    ("src/base/a.cc", '#include "base/result.h"', False),
    ("src/tensor/a.h", '#include "base/result.h"', False),
    ("src/checkpoint/a.cc", '#include "kernels/table.h"', True),
    ("src/ops/a.cc", '#include "models/batch.h"', True),
    ("src/models/layers/a.cc", '#include "ops/exec.h"', False),
    ("src/engine/a.cc", '#include "models/model.h"', False),
    ("src/engine/a.cc", '#include "models/glm4_moe_lite.h"', True),
    ("src/engine/a.cc", '#include "text/tokenizer.h"', True),
    ("src/chat/a.cc", '#include "cache/cache.h"', True),
    ("src/server/a.cc", '#include "engine/engine.h"', True),
    ("src/server/a.cc", '#include "chat/chat.h"', False),
    ("src/tools/a.cc", '#include "models/registry.h"', False),
    ("src/main.cc", '#include "tools/session.h"', False),
    ("src/text/tokenizer.cc", '#include "textcore.h"', True),
    ("src/text/rust_bridge.cc", '#include "textcore.h"', False),
    ("src/chat/a.h", "#include <nlohmann/json.hpp>", True),
    ("src/chat/a.cc", "#include <nlohmann/json.hpp>", False),
    ("src/engine/a.cc", '  #  include "../chat/chat.h"', True),
    ("src/media/a.cc", '#include "text/tokenizer.h"', True),
    ("src/media/decode.cc", '#include "textcore.h"', False),
    ("src/video/a.cc", "int x;", True),
]


def self_test():
    wrong = []
    for path, line, bad in SELF_TEST:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True)
            file.write_text(line + "\n")
            if bool(check(pathlib.Path(folder))) != bad:
                wrong.append(f"{path}: {line}   ({'not ' if bad else ''}reported)")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    found = self_test() if arguments.self_test else check(arguments.root)
    print("\n".join(found) if found else "layers: all includes point the right way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
