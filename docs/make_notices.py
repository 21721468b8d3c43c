#!/usr/bin/env python3
"""Writes THIRD_PARTY_NOTICES.md from rust/Cargo.lock and the table of Debian libraries below.

    python3 docs/make_notices.py           # needs cargo and the fetched crates
    python3 docs/make_notices.py --check   # fails when a crate of Cargo.lock is not in the notices; needs neither

Where a crate offers a choice of licences that includes Apache-2.0, it is used under Apache-2.0, whose text is LICENSE.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTICES = ROOT / "THIRD_PARTY_NOTICES.md"

DEBIAN = [  # package, what it is, how it gets in, licence, copyright
    ("libfmt-dev", "{fmt}", "compiled in (header only)", "MIT", "2012-2020 Victor Zverovich"),
    ("libspdlog-dev", "spdlog", "compiled in (header only)", "MIT", "2014-2016 Gabi Melman"),
    ("nlohmann-json3-dev", "JSON for Modern C++", "compiled in (header only)", "MIT",
     "2013-2022 Niels Lohmann; 2009 Florian Loitsch; 2008-2009 Bjoern Hoehrmann"),
    ("libcli11-dev", "CLI11", "compiled in (header only)", "BSD-3-Clause",
     "2017-2020 University of Cincinnati, developed by Henry Schreiner under NSF AWARD 1414736"),
    ("libboost-dev", "Boost", "compiled in (header only)", "BSL-1.0", "the Boost project's contributors"),
    ("libedit-dev", "libedit", "linked dynamically", "BSD-3-Clause", "1992-1993 The Regents of the University of California; 1997-2012 The NetBSD Foundation, Inc."),
    ("prometheus-cpp-dev", "prometheus-cpp, its core", "linked dynamically", "MIT", "2016-2022 Jupp Mueller; 2017-2022 Gregor Jasny"),
    ("libxxhash-dev", "xxHash", "compiled in (header only)", "BSD-2-Clause", "2012-2021 Yann Collet"),
    ("libstdc++6, libgcc-s1", "GCC's run-time libraries", "linked dynamically", "GPL-3.0 with the GCC Runtime Library Exception", "Free Software Foundation, Inc."),
    ("libc6", "GNU C library", "linked dynamically", "LGPL-2.1-or-later", "Free Software Foundation, Inc."),
    ("libgtest-dev, libgmock-dev", "GoogleTest", "tests only", "BSD-3-Clause", "2008 Google Inc."),
]

MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

BSD2 = """Redistribution and use in source and binary forms, with or without modification, are permitted provided that the
following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this list of conditions and the following
   disclaimer.
2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions and the following
   disclaimer in the documentation and/or other materials provided with the distribution.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED WARRANTIES,
INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL,
SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES;
LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN
CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS
SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"""

BSD3 = """Redistribution and use in source and binary forms, with or without modification, are permitted provided that the
following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this list of conditions and the following
   disclaimer.
2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions and the following
   disclaimer in the documentation and/or other materials provided with the distribution.
3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse or promote products
   derived from this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED WARRANTIES,
INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL,
SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES;
LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN
CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS
SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"""

BOOST = """Permission is hereby granted, free of charge, to any person or organization obtaining a copy of the software and
accompanying documentation covered by this license (the "Software") to use, reproduce, display, distribute, execute, and
transmit the Software, and to prepare derivative works of the Software, and to permit third-parties to whom the Software
is furnished to do so, all subject to the following:

The copyright notices in the Software and this entire statement, including the above license grant, this restriction and
the following disclaimer, must be included in all copies of the Software, in whole or in part, and all derivative works
of the Software, unless such copies or derivative works are solely in the form of machine-executable object code
generated by a source language processor.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE, TITLE AND NON-INFRINGEMENT. IN NO EVENT SHALL THE
COPYRIGHT HOLDERS OR ANYONE DISTRIBUTING THE SOFTWARE BE LIABLE FOR ANY DAMAGES OR OTHER LIABILITY, WHETHER IN CONTRACT,
TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

ZLIB = """This software is provided 'as-is', without any express or implied warranty. In no event will the authors be held
liable for any damages arising from the use of this software.

Permission is granted to anyone to use this software for any purpose, including commercial applications, and to alter it
and redistribute it freely, subject to the following restrictions:

1. The origin of this software must not be misrepresented; you must not claim that you wrote the original software. If
   you use this software in a product, an acknowledgment in the product documentation would be appreciated but is not
   required.
2. Altered source versions must be plainly marked as such, and must not be misrepresented as being the original software.
3. This notice may not be removed or altered from any source distribution.
"""

TEXTS = {"MIT": MIT, "BSD-2-Clause": BSD2, "BSD-3-Clause": BSD3, "BSL-1.0": BOOST, "Zlib": ZLIB}


def locked_crates():
    lock = tomllib.loads((ROOT / "rust/Cargo.lock").read_text())
    return [(p["name"], p["version"]) for p in lock["package"] if "source" in p]


def row(cells):
    return "| " + " | ".join(cells) + " |\n"


def chosen_licence(offered):
    """Apache-2.0 where that is one of the choices, else what the crate says."""
    choices = [c.strip() for c in re.split(r"\s+OR\s+|/", offered)]
    if "Apache-2.0" in choices:
        return "Apache-2.0"
    return next((c for c in choices if c in TEXTS), offered)


def licence_files(folder):
    return [f for f in sorted(folder.iterdir()) if f.is_file() and re.match(r"LICEN[SC]E|COPYRIGHT|COPYING|NOTICE", f.name, re.I)]


def copyright_lines(folder):
    """The copyright lines of a crate's licence files, without the Apache text's template."""
    lines = []
    for file in licence_files(folder):
        for line in file.read_text(errors="replace").splitlines():
            line = line.strip(" \t#*/")
            if re.match(r"(Copyright|©)\s.*(\d{4}|\(c\) (The |Microsoft ))", line, re.I) and "[yyyy]" not in line:
                holder = re.sub(r"^Copyright:?\s*(\(c\)|©)?\s*|\s*All rights reserved\.?$", "", line, flags=re.I)
                if not re.search(r"[a-z]", holder, re.I):
                    holder += f" the {folder.name.rsplit('-', 1)[0]} authors"
                if holder not in lines:
                    lines.append(holder)
    return lines


def crates():
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", str(ROOT / "rust/Cargo.toml")]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    for p in sorted((p for p in packages if p["source"]), key=lambda p: (p["name"], p["version"])):
        folder = pathlib.Path(p["manifest_path"]).parent
        holders = copyright_lines(folder) or [", ".join(p["authors"]) or f"the {p['name']} authors"]
        yield p["name"], p["version"], p["license"] or "see its licence file", holders, folder


def write():
    listed = list(crates())
    out = ["# Third-party notices\n\nglint is licensed under Apache-2.0 (see LICENSE). It is built with the libraries below; "
           "each stays under its own licence. `docs/make_notices.py` writes this file.\n\n## Libraries of Debian 12\n\n"]
    out += [row(["package", "what", "how", "licence", "copyright"]), row(["---"] * 5)]
    out += [row(entry) for entry in DEBIAN]
    out += ["\n## Rust\n\nThe Rust standard library is compiled in, under MIT OR Apache-2.0 (copyright the Rust project's contributors). "
            "So are these crates; procedural macros and build scripts among them run at build time only. Where the licence offers "
            "Apache-2.0, that is the one used.\n\n"]
    out += [row(["crate", "version", "licence", "copyright"]), row(["---"] * 4)]
    needed = {d[3] for d in DEBIAN}
    whole = []
    for name, version, licence, holders, folder in listed:
        out.append(row([name, version, licence, "; ".join(holders).replace("|", "\\|")]))
        choice = chosen_licence(licence)
        needed.add(choice)
        if choice not in TEXTS and choice != "Apache-2.0":
            whole += [(name, file) for file in licence_files(folder) if not re.search(r"APACHE|MIT", file.name, re.I)]
        whole += [(name, file) for file in licence_files(folder) if file.name.upper().startswith("NOTICE")]
    out.append("\n## Licence texts\n\nApache-2.0: see LICENSE.\n")
    for name in sorted(TEXTS):
        if name in needed:
            out.append(f"\n### {name}\n\n{TEXTS[name]}")
    for name, file in whole:
        out.append(f"\n### {name}: {file.name}\n\n```\n{file.read_text(errors='replace').strip()}\n```\n")
    NOTICES.write_text("".join(out))


def check():
    text = NOTICES.read_text()
    return [f"{name} {version}" for name, version in locked_crates() if f"| {name} | {version} |" not in text]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        write()
    missing = check()
    if missing:
        print(f"{NOTICES.name} lacks {', '.join(missing)}: run docs/make_notices.py")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
