#!/usr/bin/env python3
"""Writes tests/data/tokenizer_corpus.json: awkward strings and the ids that transformers gives for them.

Usage: make_tokenizer_corpus.py [MODEL_DIR [OUT]]. Needs the packages transformers and tokenizers, no torch.
"""

import json
import pathlib
import random
import sys

import tokenizers
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent


def corpus() -> dict[str, str]:
    texts = {
        "empty": "",
        "one_space": " ",
        "hello": "Hello, world!",
        "leading_space": "  two spaces before",
        "trailing_space": "two spaces after  ",
        "nul": "a\0b\0\0c",
        "controls": "".join(map(chr, range(0, 32))) + "\x7f\x80\x9f",
        "crlf": "one\r\ntwo\r\n\r\nthree\n\rfour\r",
        "newlines_and_spaces": "a \n b\n \n\n  c\t\n\td \r\n  e",
        "unicode_spaces": "a\u00a0b\u1680c\u2000d\u2003e\u2028f\u2029g\u202fh\u205fi\u3000j\u0085k\u000bl\u000cm\u200bn\ufeffo",
        "space_kinds_alone": " \t\u00a0\u2003\u3000\n\u2028\r\n",
        "digits": "1 12 123 1234 12345 123456789012345678901234567890",
        "digits_in_words": "abc123def4567 v2.10.3 1,000,000.50 0x1F 1e-7",
        "digits_unicode": "\u0661\u0662\u0663\u0664 \u0967\u0968\u0969\u096a \u00b2\u00b3 \u2167 \u00bd \uff11\uff12\uff13\uff14",
        "contractions": "I'm you're he's we'll they'd I've don't 'TIS I'M YOU'RE HE'S WE'LL",
        "contractions_odd": "'s't're've'm'll'd ''s '\u017f I'\u017f \u2019s it\u2019s '\u212a",
        "emoji": "\U0001f600\U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7 \u2764\ufe0f",
        "emoji_zwj": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f468\u200d\U0001f4bb\U0001f3f3\ufe0f\u200d\U0001f308",
        "cjk": "你好，世界。これはテストです。한국어 문장입니다.",
        "cjk_mixed": "Python3.12のasyncioで100件のタスクを実行する。",
        "combining": "e\u0301 a\u030a\u0328 n\u0303 Z\u0351\u036b\u0343\u036a\u0302 \u0915\u094d\u0937\u093f",
        "composed_and_not": "\u00e9 e\u0301 \u1ec7 e\u0323\u0302 \u212b \u00c5 A\u030a",
        "rtl": "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 123 \u05e9\u05dc\u05d5\u05dd \u202eabc\u202c",
        "thai_hindi_tamil": "สวัสดีชาวโลก नमस्ते दुनिया வணக்கம்",
        "math": "\u2200x\u2208\u211d: \u2211_{i=0}^{n} x\u1d62 \u2264 \u222b f(x)dx \U0001d400\U0001d7d8",
        "code_python": "def f(x: int) -> str:\n    \"\"\"Doc.\"\"\"\n    if x >= 10:\n\t\treturn f\"{x!r:>10}\"  # ok\n    return None\n",
        "code_cpp": "template <typename T>\nstd::vector<T>&& g(T const* p, size_t n) noexcept { return {p, p+n}; }\n",
        "json": "{\"a\": [1, 2.5e-3, null, true], \"b\\n\": \"\\u00e9\"}",
        "html": "<p class=\"x\">&amp; <br/></p><!-- c -->",
        "url": "https://example.org/a/b?c=d&e=%20f#g user@example.org",
        "punctuation": "!!!...???---___***///\\\\\\|||~~~```'''\"\"\"",
        "punctuation_newline": "what?!\n\n...\r\n;;;\n}",
        "space_punctuation": " ! . ,  ;   :    ?",
        "long_a": "a" * 5000,
        "long_space": " " * 3000,
        "long_space_word": " " * 999 + "word",
        "long_newline": "\n" * 1000,
        "long_digit": "7" * 1000,
        "long_emoji": "\U0001f600" * 300,
        "long_punct": "=" * 2000 + "\n",
        "long_word": "antidisestablishmentarianism" * 40,
        "tabs": "\ta\t\tb\t\t\tc",
        "special_all": "[gMASK]<sop><|system|>You<|user|>Hi<|assistant|><think>x</think>y<|observation|><|endoftext|>",
        "special_adjacent": "<|user|><|user|><think></think><think>",
        "special_spaces": " <|user|> \n<|assistant|>\n <think> \n</think> ",
        "special_tools": "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call><tool_response>r</tool_response>",
        "special_broken": "<|user|<|user|>|> <think <think>> </ think> <<|system|>> /nothink/nothink x/nothink",
        "special_case": "<|USER|> <Think> [gmask] [GMASK]",
        "special_inside_words": "abc<think>def</think>ghi[MASK]jkl<eop>",
        "special_contractions": "it<think>'s</think>'s",
        "mixed": "Caf\u00e9 \u2014 \u201cna\u00efve\u201d r\u00e9sum\u00e9\u2026 \u0416\u0443\u043a \u03a9\u03bc\u03ad\u03b3\u03b1 \u4f60A\u597dB\uff01\n\t\u2022 item\u00a01",
        "private_use": "\ue000a\ue001\uf8ff\U000f0000 \ufffd \uffff \U0010ffff",
        "surrogate_edges": "\ud7ff\ue000\ufffd",
        "ligatures_case": "\ufb01 \u00df \u1e9e \u0130 \u0131 \u01c5 \u01c8 \u03c2\u03c3\u03a3",
        "modifiers": "\u02b0\u02b1 \u0e46 \u3005 \u309d \u30fc \u00aa\u00ba",
        "marks_alone": "\u0301\u0302 \u20dd\u20e3 1\ufe0f\u20e3",
        "tags_flag": "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    }
    pool = (
        list(" \t\n\r\u00a0\u3000") + list("abcXYZ'\u2019\u017f") + list("0123\u0664\u00bd") + list(".,!<>|/[]{}\"\\-_")
        + list("\u00e9\u4f60\u597d\u0627\u05d0\u0e01\u0301\u200d\ufe0f\U0001f600\U0001f469") + ["<|user|>", "<think>", "</think>", "'s", "'ll"]
    )
    rng = random.Random(20260711)
    for index in range(60):
        texts[f"random_{index:02d}"] = "".join(rng.choice(pool) for _ in range(rng.randrange(1, 120)))
    for code in range(0x20, 0x3000, 0x80):
        texts[f"block_{code:04x}"] = "".join(
            chr(c) for c in range(code, code + 0x80) if not 0xD800 <= c < 0xE000)
    return texts


def main() -> None:
    model = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "models" / "demo"
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "tests" / "data" / "tokenizer_corpus.json"
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(model)
    # The same text with nothing special in it: what text from a message must become.
    bare = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    bare["added_tokens"] = []
    plain = tokenizers.Tokenizer.from_str(json.dumps(bare))
    cases = []
    for name, text in corpus().items():
        ids = tokenizer.encode(text, add_special_tokens=False)
        case = {"name": name, "text": text, "ids": ids, "decoded": tokenizer.decode(ids)}
        plain_ids = plain.encode(text, add_special_tokens=False).ids
        if plain_ids != ids:
            case["plain_ids"] = plain_ids
        cases.append(case)
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out, "w", encoding="utf-8") as file:
        file.write('{"transformers": %s, "cases": [\n' % json.dumps(transformers.__version__))
        file.write(",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases))
        file.write("\n]}\n")


if __name__ == "__main__":
    main()
