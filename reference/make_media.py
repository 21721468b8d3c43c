#!/usr/bin/env python3
"""Writes tests/data/media: small images in every form that glint reads, and what Pillow and the image processor of
transformers make of them.

    python3 -m venv build/media && build/media/bin/pip install pillow numpy transformers
    build/media/bin/python reference/make_media.py

    cases.json decode    FILE should become EXPECTED (a PNG), each value within `tolerance`
               resize    FILE scaled to width x height is EXPECTED, within a level
               sizes     [width, height, min tokens, max tokens, canvas width, height, content width, height]
               patches   what the processor makes of FILE under small rules

and tests/data/vision: a text side for the golden checkpoint glm5_next, whose images have patches of 4 x 4 pixels.
"""

import json
import pathlib

import numpy as np
from PIL import Image, ImageOps
from transformers.models.glm5_next import image_processing_pil_glm5_next as reference

DATA = pathlib.Path(__file__).resolve().parents[1] / "tests/data"
OUT = DATA / "media"


def picture(width, height, seed):
    """Smooth colours with noise, so that every filter has something to do."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / 3 + 1) + np.cos(y / 4), np.sin((x + y) / 5), np.cos(x / 2 - y / 3)]
    pixels = 127 + 90 * np.stack(waves, axis=-1) / 2 + random.normal(0, 12, (height, width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def loaded(path):
    """As load_image() of transformers does it."""
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def decode_cases():
    rgb = picture(24, 17, 1)
    alpha = Image.fromarray(np.arange(24 * 17, dtype=np.uint8).reshape(17, 24))
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    grey_alpha = Image.merge("LA", (rgb.convert("L"), alpha))
    palette = rgb.quantize(16)
    deep = np.asarray(rgb).astype(np.uint16) * 257
    smooth = picture(48, 34, 2).resize((24, 17), Image.Resampling.BICUBIC)
    plan = [  # name, image, tolerance, options of save()
        ("rgb.png", rgb, 0, {}),
        ("rgba.png", rgba, 0, {}),
        ("grey.png", rgb.convert("L"), 0, {}),
        ("grey_alpha.png", grey_alpha, 0, {}),
        ("one_bit.png", rgb.convert("1"), 0, {}),
        ("palette.png", palette, 0, {}),
        ("palette_alpha.png", palette, 0, {"transparency": 3}),
        ("animated.png", rgb, 0, {"save_all": True, "append_images": [picture(24, 17, 9)], "duration": 100}),
        ("colour.jpg", smooth, 6, {"quality": 90, "subsampling": 0}),
        ("half_colour.jpg", smooth, 12, {"quality": 90, "subsampling": 2}),
        ("progressive.jpg", smooth, 6, {"quality": 90, "subsampling": 0, "progressive": True}),
        ("grey.jpg", smooth.convert("L"), 3, {"quality": 90}),
        ("cmyk.jpg", smooth.convert("CMYK"), 8, {"quality": 95}),
        ("lossless.webp", rgb, 0, {"lossless": True}),
        ("lossless_alpha.webp", rgba, 0, {"lossless": True, "exact": True}),
        ("lossy.webp", smooth, 6, {"quality": 80}),
        ("animated.webp", rgb, 0, {"save_all": True, "append_images": [picture(24, 17, 9)], "duration": 100, "lossless": True}),
    ]
    for name, image, tolerance, options in plan:
        image.save(OUT / name, **options)
        yield name, tolerance
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for ending, options in [("png", {}), ("jpg", {"quality": 90, "subsampling": 0}), ("webp", {"lossless": True})]:
            if orientation not in (3, 6) and ending != "png":
                continue
            name = f"turned_{orientation}.{ending}"
            smooth.save(OUT / name, exif=exif, **options)
            yield name, 6 if ending == "jpg" else 0
    write_deep_png("deep.png", deep)
    yield "deep.png", 0
    write_interlaced_png("interlaced.png", rgb)
    yield "interlaced.png", 0


def write_png(name, width, height, bits, interlace, rows):
    import struct
    import zlib

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, interlace)
    data = b"".join(b"\0" + row for row in rows)
    (OUT / name).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b""))


def write_deep_png(name, pixels):
    """16 bits a channel, which Pillow reads and does not write."""
    height, width, _ = pixels.shape
    write_png(name, width, height, 16, 0, [row.astype(">u2").tobytes() for row in pixels])


def write_interlaced_png(name, image):
    """Adam7, which Pillow reads and does not write."""
    pixels = np.asarray(image)
    rows = []
    for y, x, dy, dx in [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]:
        part = pixels[y::dy, x::dx]
        rows += [row.tobytes() for row in part if row.size]
    write_png(name, image.width, image.height, 8, 1, rows)


def expected(image, known):
    """The name of a file that holds the image, written once."""
    key = (image.size, image.tobytes())
    if key not in known:
        known[key] = f"expected_{len(known)}.png"
        image.save(OUT / known[key])
    return known[key]


class Recorded(Exception):
    pass


def sizes():
    random = np.random.default_rng(3)
    plan = [(1, 1), (1, 65535), (65535, 1), (28, 28), (112, 112), (111, 113), (4000, 3000), (3, 700), (8000, 6000), (27, 900)]
    plan += [tuple(int(v) for v in np.exp(random.uniform(0, 9, 2)) + 1) for _ in range(30)]
    for i, (width, height) in enumerate(plan):
        least, most = [(16, 8000), (16, 512), (4, 64), (16, 3000)][i % 4]
        canvas_height, canvas_width = reference.smart_resize(2, height, width, min_pixels=least, max_pixels=most)
        content = content_size(width, height, least, most)
        yield [width, height, least, most, canvas_width, canvas_height, *content]


def content_size(width, height, least, most):
    """What the processor would resize an image of that size to."""
    base = reference.Glm5NextImageProcessorPil.__mro__[1]
    kept = base.resize

    def record(self, image, size, *args, **kwargs):
        raise Recorded(size.width, size.height)

    base.resize = record
    try:
        image = np.broadcast_to(np.zeros((3, 1, 1), np.uint8), (3, height, width))
        reference.Glm5NextImageProcessorPil().resize(
            image, resample=3, factor=28, temporal_factor=2, min_image_tokens=least, max_image_tokens=most)
    except Recorded as size:
        return size.args
    finally:
        base.resize = kept
    return width, height


def patches():
    for name, width, height, most in [("small.png", 21, 13, 64), ("long.png", 17, 150, 6), ("wide.png", 150, 17, 6), ("tiny.png", 3, 2, 64)]:
        picture(width, height, 5).save(OUT / name)
        processor = reference.Glm5NextImageProcessorPil(
            patch_size=4, merge_size=2, temporal_patch_size=2, min_image_tokens=3, max_image_tokens=most)
        out = processor(loaded(OUT / name), return_tensors="np")
        grid = [int(v) for v in out["image_grid_thw"][0]]
        yield {"file": name, "patch_size": 4, "min_tokens": 3, "max_tokens": most, "height": grid[1], "width": grid[2],
               "values": [round(float(v), 5) for v in out["pixel_values"].ravel()]}


MARKERS = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>",
           "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>",
           "</arg_value>"]
IMAGE_MARKERS = {300: "<|begin_of_image|>", 301: "<|end_of_image|>", 302: "<|begin_of_video|>", 303: "<|end_of_video|>",
                 304: "<|image|>", 305: "<|video|>", 319: "<|endoftext|>"}
TEMPLATE = """{#- A fixture in the manner of GLM's templates for models that see. -#}
{%- macro visible(content) -%}
{%- if content is string -%}{{- content -}}
{%- else -%}{%- for part in content -%}
{%- if part.type == 'text' -%}{{- part.text -}}
{%- elif part.type == 'image' -%}{{- '<|begin_of_image|><|image|><|end_of_image|>' -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{{- '[gMASK]<sop>' -}}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}{{- '<|observation|><tool_response>' + visible(m.content) + '</tool_response>' -}}
{%- elif m.role == 'assistant' -%}{{- '<|assistant|></think>' + visible(m.content) -}}
{%- else -%}{{- '<|' + m.role + '|>' + visible(m.content) -}}{%- endif -%}
{%- endfor -%}
{{- '<|assistant|></think>' if add_generation_prompt else '' -}}
"""


def byte_letters():
    """The letter that stands for each byte in byte-level vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def write_text_side(folder):
    folder.mkdir(parents=True, exist_ok=True)
    added = {256 + i: text for i, text in enumerate(MARKERS)} | IMAGE_MARKERS
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    letters = byte_letters()
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": id, "content": text, **flags} for id, text in added.items()],
        "normalizer": None, "pre_tokenizer": level, "post_processor": level, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  # Added tokens keep ids with gaps between them only where the model's vocabulary names them too.
                  "vocab": {letters[b]: b for b in range(256)} | {text: id for id, text in added.items()}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, indent=0) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(
        {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "min_image_tokens": 4, "max_image_tokens": 120}) + "\n")


def main():
    write_text_side(DATA / "vision")
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    known = {}
    cases = {"decode": [], "resize": [], "sizes": list(sizes()), "patches": list(patches())}
    for name, tolerance in decode_cases():
        cases["decode"].append({"file": name, "expected": expected(loaded(OUT / name), known), "tolerance": tolerance})
    source = picture(37, 29, 4)
    source.save(OUT / "source.png")
    for width, height in [(74, 50), (15, 11), (37, 11), (15, 29), (1, 1), (100, 3)]:
        scaled = source.resize((width, height), Image.Resampling.BICUBIC)
        cases["resize"].append({"file": "source.png", "width": width, "height": height, "expected": expected(scaled, known)})
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(case, separators=(",", ":")) for case in value) + "]" for key, value in cases.items()]
    (OUT / "cases.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
