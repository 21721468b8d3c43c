//! The exported functions of grammars.

use crate::ffi::{guarded, text_of, TcBytes};
use crate::grammar::{Grammar, GrammarKind, GrammarMatcher, TokenUse, Vocabulary};

const MARKER: u8 = 1;
const NEVER: u8 = 2;

unsafe fn slice_of<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, len)
}

/// # Safety
/// `bytes` holds as many bytes as `lengths` add up to; `lengths` and `uses` hold `size` items, `ends` holds `num_ends`;
/// `out` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_vocabulary_new(
    bytes: *const u8,
    lengths: *const u32,
    uses: *const u8,
    size: usize,
    ends: *const u32,
    num_ends: usize,
    out: *mut *mut Vocabulary,
    error: *mut TcBytes,
) -> i32 {
    guarded(
        error,
        || {
            let mut words: Vec<(&[u8], TokenUse)> = Vec::with_capacity(size);
            let mut at = 0;
            for (length, how) in slice_of(lengths, size).iter().zip(slice_of(uses, size)) {
                let how = match *how {
                    MARKER => TokenUse::Marker,
                    NEVER => TokenUse::Never,
                    _ => TokenUse::Text,
                };
                words.push((slice_of(bytes.wrapping_add(at), *length as usize), how));
                at += *length as usize;
            }
            Vocabulary::new(size, |id| words[id], slice_of(ends, num_ends))
        },
        |vocabulary| out.write(Box::into_raw(Box::new(vocabulary))),
    )
}

/// # Safety
/// `vocabulary` came from `tc_vocabulary_new`, or is null.
#[no_mangle]
pub unsafe extern "C" fn tc_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        drop(Box::from_raw(vocabulary));
    }
}

/// # Safety
/// `vocabulary` is a live handle; `text` holds `len` bytes; `out` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_grammar_new(
    vocabulary: *const Vocabulary,
    kind: i32,
    text: *const u8,
    len: usize,
    out: *mut *mut Grammar,
    error: *mut TcBytes,
) -> i32 {
    let kind = match kind {
        0 => GrammarKind::JsonSchema,
        1 => GrammarKind::Regex,
        _ => GrammarKind::Lark,
    };
    guarded(
        error,
        || (*vocabulary).compile(kind, &text_of(text, len)),
        |grammar| out.write(Box::into_raw(Box::new(grammar))),
    )
}

/// # Safety
/// `grammar` came from `tc_grammar_new`, or is null.
#[no_mangle]
pub unsafe extern "C" fn tc_grammar_free(grammar: *mut Grammar) {
    if !grammar.is_null() {
        drop(Box::from_raw(grammar));
    }
}

/// # Safety
/// `grammar` is a live handle; `out` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_matcher_new(
    grammar: *const Grammar,
    out: *mut *mut GrammarMatcher,
    error: *mut TcBytes,
) -> i32 {
    guarded(error, || Ok((*grammar).start()), |matcher| out.write(Box::into_raw(Box::new(matcher))))
}

/// # Safety
/// `matcher` came from `tc_matcher_new`, or is null.
#[no_mangle]
pub unsafe extern "C" fn tc_matcher_free(matcher: *mut GrammarMatcher) {
    if !matcher.is_null() {
        drop(Box::from_raw(matcher));
    }
}

/// # Safety
/// `matcher` is a live handle used by this thread alone; `words` holds `len` items; `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_matcher_mask(
    matcher: *mut GrammarMatcher,
    words: *mut u32,
    len: usize,
    error: *mut TcBytes,
) -> i32 {
    guarded(error, || (*matcher).mask(std::slice::from_raw_parts_mut(words, len)), |()| ())
}

/// # Safety
/// `matcher` is a live handle used by this thread alone; `accepted` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_matcher_accept(
    matcher: *mut GrammarMatcher,
    token: u32,
    accepted: *mut bool,
    error: *mut TcBytes,
) -> i32 {
    guarded(error, || (*matcher).accept(token), |yes| accepted.write(yes))
}

/// # Safety
/// `matcher` is a live handle used by this thread alone; `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_matcher_rollback(
    matcher: *mut GrammarMatcher,
    count: usize,
    error: *mut TcBytes,
) -> i32 {
    guarded(error, || (*matcher).rollback(count), |()| ())
}

/// # Safety
/// `matcher` is a live handle used by this thread alone; `tokens` holds `len` items; `allowed` and `error` can be
/// written.
#[no_mangle]
pub unsafe extern "C" fn tc_matcher_num_allowed(
    matcher: *mut GrammarMatcher,
    tokens: *const u32,
    len: usize,
    allowed: *mut usize,
    error: *mut TcBytes,
) -> i32 {
    guarded(error, || (*matcher).num_allowed(slice_of(tokens, len)), |count| allowed.write(count))
}

/// # Safety
/// `matcher` is a live handle used by this thread alone; `complete`, `stopped` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_matcher_state(
    matcher: *mut GrammarMatcher,
    complete: *mut bool,
    stopped: *mut bool,
    error: *mut TcBytes,
) -> i32 {
    guarded(
        error,
        || Ok(((*matcher).is_complete(), (*matcher).is_stopped())),
        |(is_complete, is_stopped)| {
            complete.write(is_complete);
            stopped.write(is_stopped);
        },
    )
}
