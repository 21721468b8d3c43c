//! Grammars as the C++ side relies on them.

use textcore::grammar::{Grammar, GrammarKind, GrammarMatcher, TokenUse, Vocabulary};
use textcore::Failure;

const END: u32 = 256;
const OTHER_END: u32 = 257;
const CALL: u32 = 258;
const UNUSED: u32 = 259;
const SIZE: usize = 262;

/// Single bytes, two end tokens, a marker, an id without a token, a word and a second token of the same bytes.
fn vocabulary() -> Vocabulary {
    let bytes: Vec<u8> = (0..=255).collect();
    let token = |id: usize| -> (&[u8], TokenUse) {
        match id {
            0..=255 => (&bytes[id..=id], TokenUse::Text),
            256 => (b"<end>", TokenUse::Marker),
            257 => (b"<other_end>", TokenUse::Marker),
            258 => (b"<call>", TokenUse::Marker),
            259 => (b"", TokenUse::Never),
            260 => (b"true", TokenUse::Text),
            _ => (b"a", TokenUse::Text),
        }
    };
    Vocabulary::new(SIZE, token, &[END, OTHER_END]).unwrap()
}

fn compile(kind: GrammarKind, text: &str) -> Grammar {
    vocabulary().compile(kind, text).unwrap()
}

fn refusal(kind: GrammarKind, text: &str) -> String {
    match vocabulary().compile(kind, text) {
        Err(Failure::Invalid(message)) => message,
        Err(failure) => panic!("{failure:?}"),
        Ok(_) => panic!("compiled: {text}"),
    }
}

fn allowed(matcher: &mut GrammarMatcher) -> Vec<u32> {
    let mut words = [u32::MAX; SIZE.div_ceil(32)];
    matcher.mask(&mut words).unwrap();
    (0..words.len() as u32 * 32)
        .filter(|id| words[*id as usize / 32] >> (id % 32) & 1 != 0)
        .collect()
}

fn accept(matcher: &mut GrammarMatcher, text: &str) {
    for byte in text.bytes() {
        assert!(matcher.accept(u32::from(byte)).unwrap(), "{} of {text}", byte as char);
    }
}

#[test]
fn a_schema_allows_its_documents_and_then_ends() {
    let grammar = compile(GrammarKind::JsonSchema, r#"{"type":"boolean"}"#);
    let mut matcher = grammar.start();
    assert_eq!(allowed(&mut matcher), [u32::from(b'f'), u32::from(b't'), 260]);
    assert!(!matcher.is_complete() && !matcher.is_stopped());
    assert!(!matcher.accept(u32::from(b'x')).unwrap());
    assert!(!matcher.accept(END).unwrap());
    assert!(matcher.accept(260).unwrap());
    assert!(matcher.is_complete());
    assert_eq!(allowed(&mut matcher), [END, OTHER_END]);
    assert!(matcher.accept(OTHER_END).unwrap());
    assert!(matcher.is_stopped());
    matcher.rollback(2).unwrap();
    accept(&mut matcher, "tru");
    assert_eq!(allowed(&mut matcher), [u32::from(b'e')]);
    assert!(matcher.rollback(4).is_err());
    matcher.rollback(3).unwrap();
    assert_eq!(allowed(&mut matcher), [u32::from(b'f'), u32::from(b't'), 260]);
}

#[test]
fn markers_need_their_name_and_bytes_their_meaning() {
    let mut text = compile(GrammarKind::Regex, "(?s:.*)").start();
    let ids = allowed(&mut text);
    assert!(ids.contains(&END) && !ids.contains(&CALL) && !ids.contains(&UNUSED));
    assert!(!ids.contains(&0xff) && !ids.contains(&0xfe) && !ids.contains(&0x80));
    assert!(ids.contains(&u32::from(b'a')) && ids.contains(&261));
    assert!(
        !text.accept(CALL).unwrap()
            && !text.accept(UNUSED).unwrap()
            && !text.accept(1 << 30).unwrap()
    );
    for source in ["start: <call> \"a\"", "start: <[258]> \"a\""] {
        let mut named = compile(GrammarKind::Lark, source).start();
        assert_eq!(allowed(&mut named), [CALL]);
        assert!(named.accept(CALL).unwrap());
        assert_eq!(allowed(&mut named), [u32::from(b'a'), 261]);
        named.rollback(1).unwrap();
        assert_eq!(allowed(&mut named), [CALL]);
    }
    let mut any = compile(GrammarKind::Lark, "start: <[*]> \"a\"").start();
    assert!(!allowed(&mut any).contains(&UNUSED));
}

#[test]
fn drafts_are_counted_without_being_taken() {
    let mut matcher = compile(GrammarKind::JsonSchema, r#"{"enum":["ab","ac"]}"#).start();
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    assert_eq!(matcher.num_allowed(&ids("\"ab\"")).unwrap(), 4);
    assert_eq!(matcher.num_allowed(&ids("\"ad\"")).unwrap(), 2);
    assert_eq!(matcher.num_allowed(&[]).unwrap(), 0);
    let mut draft = ids("\"ac\"");
    draft.extend([END, OTHER_END, u32::from(b'a')]);
    assert_eq!(matcher.num_allowed(&draft).unwrap(), 6);
    assert_eq!(matcher.num_allowed(&[u32::from(b'"'), 1 << 20]).unwrap(), 1);
    accept(&mut matcher, "\"ac\"");
    assert_eq!(matcher.num_allowed(&[END, 5]).unwrap(), 1);
}

#[test]
fn grammars_that_cannot_go_back_begin_anew() {
    let mut matcher =
        compile(GrammarKind::Lark, "start: a \"!\"\na[stop=\"end\"]: /[a-z ]+/").start();
    accept(&mut matcher, "some text");
    matcher.rollback(5).unwrap();
    let after = allowed(&mut matcher);
    let mut fresh =
        compile(GrammarKind::Lark, "start: a \"!\"\na[stop=\"end\"]: /[a-z ]+/").start();
    accept(&mut fresh, "some");
    assert_eq!(after, allowed(&mut fresh));
}

#[test]
fn matchers_of_one_grammar_do_not_see_each_other() {
    let grammar = compile(GrammarKind::JsonSchema, "{}");
    let mut first = grammar.start();
    let mut second = grammar.start();
    accept(&mut first, "[1,");
    accept(&mut second, "{\"a\":");
    drop(grammar);
    accept(&mut first, "2]");
    accept(&mut second, "null}");
    assert!(first.is_complete() && second.is_complete());
}

#[test]
fn what_does_not_compile_says_why() {
    assert!(refusal(GrammarKind::JsonSchema, "{").contains("EOF"));
    assert!(refusal(GrammarKind::JsonSchema, r#"{"type":"array","uniqueItems":true}"#)
        .contains("uniqueItems"));
    assert!(refusal(GrammarKind::Regex, "(a").contains("regex"));
    assert!(refusal(GrammarKind::Lark, "start: other").contains("other"));
    assert!(refusal(GrammarKind::Lark, "start: <no_such_token>").contains("no_such_token"));
    assert!(refusal(GrammarKind::Lark, "").contains("start"));
    let deep = format!("start: {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    assert!(refusal(GrammarKind::Lark, &deep).contains("deep"));
    // A fault of the crate says no more about itself than it must.
    for text in [r#"{"type":"string","pattern":"["}"#, r#"{"const":1e999}"#] {
        assert!(!refusal(GrammarKind::JsonSchema, text).contains("backtrace"));
    }
}

#[test]
fn a_vocabulary_needs_tokens_and_ends_among_them() {
    let token = |_: usize| -> (&[u8], TokenUse) { (b"a", TokenUse::Text) };
    assert!(Vocabulary::new(0, token, &[0]).is_err());
    assert!(Vocabulary::new(3, token, &[]).is_err());
    assert!(Vocabulary::new(3, token, &[3]).is_err());
    let long = vec![b'a'; 5000];
    let token = |id: usize| -> (&[u8], TokenUse) {
        if id == 0 {
            (&long, TokenUse::Text)
        } else {
            (b"b", TokenUse::Text)
        }
    };
    let vocabulary = Vocabulary::new(3, token, &[2]).unwrap();
    let mut matcher = vocabulary.compile(GrammarKind::Regex, "[ab]*").unwrap().start();
    let mut words = [0];
    matcher.mask(&mut words).unwrap();
    assert_eq!(words[0] & 1, 0);
}
