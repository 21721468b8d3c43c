//! Tokenizers, chat templates, grammars and decoders of images behind the C ABI of `textcore.h`.

pub mod byte_level;
pub mod ffi;
pub mod grammar;
pub mod grammar_ffi;
pub mod guard;
pub mod image;
pub mod image_ffi;
pub mod python;
pub mod python_methods;
pub mod template;
pub mod tojson;
pub mod tokenizer;

/// What went wrong, as the status of `textcore.h` and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    Invalid(String),
    Corrupt(String),
    Unsupported(String),
    Internal(String),
}

impl Failure {
    pub fn message(&self) -> &str {
        match self {
            Failure::Invalid(m)
            | Failure::Corrupt(m)
            | Failure::Unsupported(m)
            | Failure::Internal(m) => m,
        }
    }
}
