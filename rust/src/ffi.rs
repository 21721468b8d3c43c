//! The exported functions: pointers to slices, results to buffers, panics to a status.

use std::borrow::Cow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use crate::template::ChatTemplate;
use crate::tokenizer::{EncodeMode, TextTokenizer};
use crate::Failure;

const OK: i32 = 0;

#[repr(C)]
pub struct TcBytes {
    data: *mut u8,
    len: usize,
    capacity: usize,
}

#[repr(C)]
pub struct TcIds {
    data: *mut u32,
    len: usize,
    capacity: usize,
}

fn split_vec<T>(vec: Vec<T>) -> (*mut T, usize, usize) {
    let mut vec = std::mem::ManuallyDrop::new(vec);
    (vec.as_mut_ptr(), vec.len(), vec.capacity())
}

impl TcBytes {
    fn new(text: String) -> Self {
        Self::of(text.into_bytes())
    }

    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        let (data, len, capacity) = split_vec(bytes);
        TcBytes { data, len, capacity }
    }
}

/// # Safety
/// `bytes` came from this library and was not freed before.
#[no_mangle]
pub unsafe extern "C" fn tc_bytes_free(bytes: TcBytes) {
    if !bytes.data.is_null() {
        drop(Vec::from_raw_parts(bytes.data, bytes.len, bytes.capacity));
    }
}

/// # Safety
/// `ids` came from this library and was not freed before.
#[no_mangle]
pub unsafe extern "C" fn tc_ids_free(ids: TcIds) {
    if !ids.data.is_null() {
        drop(Vec::from_raw_parts(ids.data, ids.len, ids.capacity));
    }
}

pub(crate) unsafe fn text_of<'a>(data: *const u8, len: usize) -> Cow<'a, str> {
    if len == 0 {
        return Cow::Borrowed("");
    }
    String::from_utf8_lossy(std::slice::from_raw_parts(data, len))
}

/// A panic is reported as a status, never on stderr.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

/// Runs `body`; on failure writes the message and gives the status.
pub(crate) unsafe fn guarded<T>(
    error: *mut TcBytes,
    body: impl FnOnce() -> Result<T, Failure>,
    store: impl FnOnce(T),
) -> i32 {
    silence_panics();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => {
            store(value);
            return OK;
        }
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let what = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown");
            Failure::Internal(format!("the text library panicked: {what}"))
        }
    };
    let status = match failure {
        Failure::Invalid(_) => 1,
        Failure::Corrupt(_) => 2,
        Failure::Unsupported(_) => 3,
        Failure::Internal(_) => 4,
    };
    error.write(TcBytes::new(failure.message().to_owned()));
    status
}

/// # Safety
/// `json` holds `len` bytes; `out` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_tokenizer_new(
    json: *const u8,
    len: usize,
    out: *mut *mut TextTokenizer,
    error: *mut TcBytes,
) -> i32 {
    guarded(
        error,
        || TextTokenizer::from_json(&text_of(json, len)),
        |tokenizer| out.write(Box::into_raw(Box::new(tokenizer))),
    )
}

/// # Safety
/// `tokenizer` came from `tc_tokenizer_new`, or is null.
#[no_mangle]
pub unsafe extern "C" fn tc_tokenizer_free(tokenizer: *mut TextTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// `tokenizer` is a live handle; `text` holds `len` bytes; `out` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_tokenizer_encode(
    tokenizer: *const TextTokenizer,
    text: *const u8,
    len: usize,
    mode: i32,
    out: *mut TcIds,
    error: *mut TcBytes,
) -> i32 {
    let mode = match mode {
        0 => EncodeMode::Markers,
        1 => EncodeMode::Plain,
        _ => EncodeMode::Guarded,
    };
    guarded(
        error,
        || (*tokenizer).encode(&text_of(text, len), mode),
        |ids| {
            let (data, len, capacity) = split_vec(ids);
            out.write(TcIds { data, len, capacity });
        },
    )
}

/// # Safety
/// `tokenizer` is a live handle; `text` holds `len` bytes; `out` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_tokenizer_guard(
    tokenizer: *const TextTokenizer,
    text: *const u8,
    len: usize,
    out: *mut TcBytes,
    error: *mut TcBytes,
) -> i32 {
    guarded(
        error,
        || Ok((*tokenizer).guard(&text_of(text, len))),
        |guarded_text| out.write(TcBytes::new(guarded_text)),
    )
}

/// # Safety
/// `tokenizer` is a live handle.
#[no_mangle]
pub unsafe extern "C" fn tc_tokenizer_size(tokenizer: *const TextTokenizer) -> u32 {
    (*tokenizer).size()
}

/// # Safety
/// `tokenizer` is a live handle; `data` and `len` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_tokenizer_token(
    tokenizer: *const TextTokenizer,
    id: u32,
    data: *mut *const u8,
    len: *mut usize,
) -> u32 {
    let (bytes, flags) = (&*tokenizer).token(id);
    data.write(bytes.as_ptr());
    len.write(bytes.len());
    flags
}

/// # Safety
/// `tokenizer` is a live handle; `content` holds `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn tc_tokenizer_find(
    tokenizer: *const TextTokenizer,
    content: *const u8,
    len: usize,
) -> i64 {
    let content = text_of(content, len);
    (*tokenizer).find(&content).map_or(-1, i64::from)
}

/// # Safety
/// `source` holds `len` bytes; `out` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_template_new(
    source: *const u8,
    len: usize,
    out: *mut *mut ChatTemplate,
    error: *mut TcBytes,
) -> i32 {
    guarded(
        error,
        || ChatTemplate::parse(&text_of(source, len)),
        |parsed| out.write(Box::into_raw(Box::new(parsed))),
    )
}

/// # Safety
/// `chat_template` came from `tc_template_new`, or is null.
#[no_mangle]
pub unsafe extern "C" fn tc_template_free(chat_template: *mut ChatTemplate) {
    if !chat_template.is_null() {
        drop(Box::from_raw(chat_template));
    }
}

/// # Safety
/// `chat_template` is a live handle; `variables` holds `len` bytes; `out` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_template_render(
    chat_template: *const ChatTemplate,
    variables: *const u8,
    len: usize,
    out: *mut TcBytes,
    error: *mut TcBytes,
) -> i32 {
    guarded(
        error,
        || (*chat_template).render(&text_of(variables, len)),
        |text| out.write(TcBytes::new(text)),
    )
}
