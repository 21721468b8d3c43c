#!/usr/bin/env python3
"""How fast this machine reads experts from a checkpoint's files: past the page cache (O_DIRECT, as glint streams them) and
through a mapping, both with nothing of the files cached.

    python3 bench/expert_reads.py FOLDER [--expert-bytes N] [--total-bytes N]
"""

import argparse
import mmap
import os
import pathlib
import random
import threading
import time


def jobs_of(files, expert, piece, total, seed):
    """(file, offset, length) of the pieces of random experts."""
    random_places = random.Random(seed)
    jobs = []
    for _ in range(max(1, total // expert)):
        file = random_places.choice(files)
        most = max(1, (os.path.getsize(file) - expert) // 4096)
        begin = random_places.randrange(most) * 4096
        jobs += [(file, begin + at, min(piece, expert - at)) for at in range(0, expert, piece)]
    return jobs


def drop(files):
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def run(depth, jobs, reader):
    queue, lock = iter(jobs), threading.Lock()

    def work():
        read = reader()
        while True:
            with lock:
                job = next(queue, None)
            if job is None:
                return
            read(*job)

    threads = [threading.Thread(target=work) for _ in range(depth)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(length for _, _, length in jobs) / (time.monotonic() - began)


def direct(files):
    fds = {file: os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files}

    def reader():
        buffer = mmap.mmap(-1, 64 << 20)
        return lambda file, offset, length: os.preadv(fds[file], [memoryview(buffer)[:length]], offset)

    return reader


def mapped(files, advice):
    maps = {}
    for file in files:
        with open(file, "rb") as handle:
            maps[file] = mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ)
        if advice is not None:
            maps[file].madvise(advice)

    def reader():
        buffer = bytearray(64 << 20)

        def read(file, offset, length):
            if advice == mmap.MADV_WILLNEED:
                maps[file].madvise(mmap.MADV_WILLNEED, offset, length)
            buffer[:length] = memoryview(maps[file])[offset:offset + length]

        return read

    return reader


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--expert-bytes", type=int, default=9 << 20)
    parser.add_argument("--total-bytes", type=int, default=1 << 30)
    options = parser.parse_args()
    files = sorted(str(p) for p in options.folder.glob("*.safetensors") if p.stat().st_size > 2 * options.expert_bytes)
    seed = 0
    for name, make in (("direct", direct), ("mapped", lambda f: mapped(f, None)),
                       ("mapped, random", lambda f: mapped(f, mmap.MADV_RANDOM)),
                       ("mapped, willneed", lambda f: mapped(f, mmap.MADV_WILLNEED))):
        for depth, piece in ((1, options.expert_bytes), (4, options.expert_bytes), (4, 1 << 20), (8, 1 << 20)):
            drop(files)
            seed += 1
            rate = run(depth, jobs_of(files, options.expert_bytes, piece, options.total_bytes, seed), make(files))
            print(f"{name:17} {depth} at a time, pieces of {piece >> 10:5} KiB: {rate / 1e9:5.2f} GB/s", flush=True)


if __name__ == "__main__":
    main()
