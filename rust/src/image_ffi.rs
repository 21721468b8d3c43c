//! The exported function of `image`.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use crate::ffi::{guarded, TcBytes};
use crate::image;

/// The same for equal bytes, in this process: nobody outside can choose two that collide.
///
/// # Safety
/// `bytes` holds `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn tc_keyed_hash(bytes: *const u8, len: usize) -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    let bytes = if len == 0 { &[] } else { std::slice::from_raw_parts(bytes, len) };
    KEY.get_or_init(RandomState::new).hash_one(bytes)
}

/// # Safety
/// `bytes` holds `len` bytes; `width`, `height`, `rgb` and `error` can be written.
#[no_mangle]
pub unsafe extern "C" fn tc_image_decode(
    bytes: *const u8,
    len: usize,
    max_pixels: u64,
    width: *mut u32,
    height: *mut u32,
    rgb: *mut TcBytes,
    error: *mut TcBytes,
) -> i32 {
    let bytes = if len == 0 { &[] } else { std::slice::from_raw_parts(bytes, len) };
    guarded(
        error,
        || image::decode(bytes, max_pixels),
        |picture| {
            width.write(picture.width);
            height.write(picture.height);
            rgb.write(TcBytes::of(picture.rgb));
        },
    )
}
