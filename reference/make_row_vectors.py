"""Rows of the cache's packed formats, as ml_dtypes rounds them: tests/data/row_vectors.safetensors.

    pip install ml_dtypes numpy safetensors
    python reference/make_row_vectors.py

Written from the description of FlashMLA's rows (2026.09.30), without our code: groups of 32 e4m3
elements with a power of two (fp8), groups of 16 e2m1 elements with an e4m3 scale (fp4); elements
first, then the scales. Bytes are kept as int32.
"""

import math
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

E4M3, E8M0, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn


def fp8_row(x):
    data, scales, values = [], [], []
    for group in np.split(x, range(32, len(x), 32)):
        most = np.float32(np.max(np.abs(group))) / np.float32(448)
        # Exactly: the logarithm of a float32 near a power of two would be rounded to it.
        fraction, exponent = math.frexp(max(float(most), float(np.float32(1e-4))))
        scale = np.float32(2.0 ** (exponent - (1 if fraction == 0.5 else 0)))
        elements = (group / scale).astype(np.float32).astype(E4M3)
        data += list(elements.view(np.uint8))
        stored = np.array([scale]).astype(E8M0)
        scales += list(stored.view(np.uint8))
        values += list(elements.astype(np.float32) * stored.astype(np.float32)[0])
    return data + scales, values


def fp4_row(x):
    codes, scales, values = [], [], []
    for group in np.split(x, range(16, len(x), 16)):
        most = np.float32(np.max(np.abs(group))) / np.float32(6)
        scale = np.array([np.clip(most, np.float32(2.0**-9), np.float32(448))]).astype(E4M3)
        quotients = (group / scale.astype(np.float32)[0]).astype(np.float32)
        elements = np.clip(quotients, -6, 6).astype(E2M1)
        codes += list(elements.view(np.uint8) & 15)
        scales += list(scale.view(np.uint8))
        values += list(elements.astype(np.float32) * scale.astype(np.float32)[0])
    codes += [0] * (len(codes) % 2)
    return [low | high << 4 for low, high in zip(codes[::2], codes[1::2])] + scales, values


def main():
    random = np.random.default_rng(7)
    tensors = {}
    for width in (128, 512, 576, 40):
        rows = []
        for kind in range(4):
            x = random.standard_normal(width).astype(np.float32)
            if kind == 1:  # groups of very different size
                x *= np.exp2(random.integers(-40, 40, width // 8).repeat(8)).astype(np.float32)
            if kind == 2:  # many quotients halfway between two elements, many zeros
                x = (random.integers(-64, 65, width) / 32).astype(np.float32)
            if kind == 3:  # one large value a row, the others small
                x *= np.float32(1e-3)
                x[random.integers(width)] = 100
            rows.append(x)
        x = np.stack(rows)
        tensors[f"x{width}"] = x
        for name, pack in (("fp8", fp8_row), ("fp4", fp4_row)):
            packed = [pack(row) for row in x]
            tensors[f"{name}_{width}"] = np.array([p[0] for p in packed], dtype=np.int32)
            tensors[f"{name}_{width}_values"] = np.array([p[1] for p in packed], dtype=np.float32)
    folder = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
    save_file(tensors, folder / "row_vectors.safetensors")


if __name__ == "__main__":
    main()
