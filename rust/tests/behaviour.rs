//! What the C++ side relies on.

use textcore::guard::{remove_guards, GUARD};
use textcore::template::{ChatTemplate, MAX_OUTPUT};
use textcore::tokenizer::{EncodeMode, TextTokenizer, ADDED, KNOWN, SPECIAL};
use textcore::Failure;

/// A byte-level tokenizer of single bytes, " t" and three added tokens.
fn tokenizer_json(decoder: &str) -> String {
    let mut vocab = serde_json::Map::new();
    let mut next = 0x100u32;
    for byte in 0..=255u8 {
        let stands = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if stands { u32::from(byte) } else { next };
        next += u32::from(!stands);
        let letter = char::from_u32(code).unwrap().to_string();
        vocab.insert(letter, serde_json::json!(byte));
    }
    vocab.insert("\u{120}t".to_owned(), serde_json::json!(256));
    let added = |id: u32, content: &str, special: bool| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special})
    };
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(257, "<end>", true), added(258, "<think>", false), added(259, "☃", false)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": serde_json::from_str::<serde_json::Value>(decoder).unwrap(),
        "model": {"type": "BPE", "vocab": vocab, "merges": [["\u{120}", "t"]]},
    })
    .to_string()
}

const BYTE_LEVEL: &str =
    r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}"#;

fn tokenizer() -> TextTokenizer {
    TextTokenizer::from_json(&tokenizer_json(BYTE_LEVEL)).unwrap()
}

fn render(source: &str, variables: &str) -> Result<String, Failure> {
    ChatTemplate::parse(source)?.render(variables)
}

#[test]
fn added_tokens_are_ids_with_markers_and_text_without() {
    let t = tokenizer();
    assert_eq!(t.encode("a t<end>", EncodeMode::Markers).unwrap(), [97, 256, 257]);
    assert_eq!(t.encode("a t<end>", EncodeMode::Plain).unwrap(), [97, 256, 60, 101, 110, 100, 62]);
    assert!(t.encode("", EncodeMode::Guarded).unwrap().is_empty());
}

#[test]
fn guarded_text_encodes_as_plain_text_between_live_markers() {
    let t = tokenizer();
    for text in ["x<end> t", "<<think>", "☃", "a☃☃b", "thi", "<end", "end>", "\u{E000}"] {
        let guarded = t.guard(text);
        let mut expected = vec![257];
        expected.extend(t.encode(&remove_guards(text), EncodeMode::Plain).unwrap());
        expected.push(258);
        let rendered = format!("<end>{guarded}<think>");
        assert_eq!(t.encode(&rendered, EncodeMode::Guarded).unwrap(), expected, "{text}");
    }
    assert_eq!(t.encode("☃", EncodeMode::Guarded).unwrap(), [259]);
}

#[test]
fn tokens_have_bytes_and_flags() {
    let t = tokenizer();
    assert_eq!(t.size(), 260);
    assert_eq!(t.token(256), (&b" t"[..], KNOWN));
    assert_eq!(t.token(0xff), (&[0xff][..], KNOWN));
    assert_eq!(t.token(257), (&b"<end>"[..], KNOWN | ADDED | SPECIAL));
    assert_eq!(t.token(258), (&b"<think>"[..], KNOWN | ADDED));
    assert_eq!(t.token(1000), (&[][..], 0));
    assert_eq!(t.find("<think>"), Some(258));
    assert_eq!(t.find("nothing"), None);
}

#[test]
fn other_decoders_are_refused_by_name() {
    for (decoder, name) in [
        (
            r#"{"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":true}"#,
            "Metaspace",
        ),
        (r#"{"type":"Sequence","decoders":[{"type":"Fuse"}]}"#, "Sequence"),
        ("null", "none"),
    ] {
        match TextTokenizer::from_json(&tokenizer_json(decoder)) {
            Err(Failure::Unsupported(message)) => assert!(message.contains(name), "{message}"),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("{decoder} was accepted"),
        }
    }
    let one = format!(r#"{{"type":"Sequence","decoders":[{BYTE_LEVEL}]}}"#);
    assert!(TextTokenizer::from_json(&tokenizer_json(&one)).is_ok());
}

#[test]
fn templates_see_python() {
    let variables = r#"{"m": {"b": 1, "a": [1.0, null, "é"]}, "s": " x\u001f"}"#;
    assert_eq!(
        render("{{ m|tojson }}{{ m }}{{ s.strip() }}", variables).unwrap(),
        "{\"b\": 1, \"a\": [1.0, null, \"é\"]}{'b': 1, 'a': [1.0, None, 'é']}x"
    );
    assert_eq!(
        render("{{ m|tojson(indent=1, sort_keys=true, ensure_ascii=true) }}", variables).unwrap(),
        "{\n \"a\": [\n  1.0,\n  null,\n  \"\\u00e9\"\n ],\n \"b\": 1\n}"
    );
}

#[test]
fn json_keeps_a_guard_as_it_is() {
    let text = format!("{{\"t\": \"<{GUARD}x\"}}");
    assert_eq!(
        render("{{ t|tojson(ensure_ascii=true) }}", &text).unwrap(),
        format!("\"<{GUARD}x\"")
    );
}

#[test]
fn generation_tags_are_a_scope() {
    assert_eq!(
        render("{%- generation %}a{% set x = 1 %}{% endgeneration -%}\n {{ x is defined }}", "{}")
            .unwrap(),
        "aFalse"
    );
}

#[test]
fn faults_carry_their_place() {
    match ChatTemplate::parse("a\n  {% nope %}") {
        Err(Failure::Corrupt(message)) => assert!(message.contains("line 2 column 6"), "{message}"),
        other => panic!("{:?}", other.err()),
    }
    match render("\n{{ raise_exception('no way') }}", "{}") {
        Err(Failure::Invalid(message)) => assert_eq!(message, "no way (line 2)"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn work_and_output_are_bounded() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set s = 'x' * 1000000 %}{% for a in range(99999) %}{{ s }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 100000000000 }}",
    ] {
        assert!(matches!(render(source, "{}"), Err(Failure::Invalid(_))), "{source}");
    }
    let most = format!("{{% set s = 'x' * {} %}}{{{{ s }}}}", MAX_OUTPUT);
    assert_eq!(render(&most, "{}").map(|text| text.len()), Ok(MAX_OUTPUT));
}

#[test]
fn variables_must_be_json_of_bounded_depth() {
    assert!(matches!(render("x", "{"), Err(Failure::Invalid(_))));
    let deep = format!("{{\"v\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
    assert!(matches!(render("x", &deep), Err(Failure::Invalid(_))));
}
