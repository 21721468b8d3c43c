//! A tokenizer.json as text to ids, with a table of each token's raw bytes.

use std::collections::HashMap;

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::tokenizer::{
    Model, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
};
use tokenizers::DecoderWrapper;

use crate::byte_level::ByteAlphabet;
use crate::guard::{remove_guards, GuardFinder, GUARD};
use crate::Failure;

/// Ids above this are a broken file: the table would not fit in memory.
const MAX_ID: u32 = 1 << 24;

pub const KNOWN: u32 = 1;
pub const ADDED: u32 = 2;
pub const SPECIAL: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeMode {
    Markers,
    Plain,
    Guarded,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    start: u32,
    len: u32,
    flags: u32,
}

pub struct TextTokenizer {
    inner: Tokenizer,
    guards: GuardFinder,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

enum Piece {
    Text(String),
    Id(u32),
}

impl TextTokenizer {
    pub fn from_json(json: &str) -> Result<Self, Failure> {
        let mut inner: Tokenizer =
            json.parse().map_err(|e: tokenizers::Error| Failure::Corrupt(e.to_string()))?;
        // A request's length is the caller's to limit, never the file's.
        inner
            .with_truncation(None)
            .map_err(|e| Failure::Corrupt(e.to_string()))?
            .with_padding(None);
        require_byte_level(inner.get_decoder())?;
        let (bytes, entries) = token_table(&inner)?;
        let contents: Vec<String> =
            inner.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
        let guards = GuardFinder::new(&contents).map_err(Failure::Corrupt)?;
        Ok(TextTokenizer { inner, guards, bytes, entries })
    }

    pub fn encode(&self, text: &str, mode: EncodeMode) -> Result<Vec<u32>, Failure> {
        match mode {
            EncodeMode::Plain => {
                let mut ids = Vec::new();
                self.append_plain(text, &mut ids)?;
                Ok(ids)
            }
            EncodeMode::Markers => self
                .inner
                .encode_fast(text, false)
                .map(|encoding| encoding.get_ids().to_vec())
                .map_err(|e| Failure::Internal(e.to_string())),
            EncodeMode::Guarded => self.encode_guarded(text),
        }
    }

    pub fn guard(&self, text: &str) -> String {
        self.guards.guard(text)
    }

    pub fn size(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn token(&self, id: u32) -> (&[u8], u32) {
        match self.entries.get(id as usize) {
            Some(e) => (&self.bytes[e.start as usize..(e.start + e.len) as usize], e.flags),
            None => (&[], 0),
        }
    }

    pub fn find(&self, content: &str) -> Option<u32> {
        self.inner.token_to_id(content)
    }

    /// Encodes text in which no added token is looked for.
    fn append_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        let mut pieces = PreTokenizedString::from(text);
        let run = |pieces: &mut PreTokenizedString| -> tokenizers::Result<()> {
            if let Some(normalizer) = self.inner.get_normalizer() {
                pieces.normalize(|n| normalizer.normalize(n))?;
            }
            if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(pieces)?;
            }
            pieces.tokenize(|n| self.inner.get_model().tokenize(n.get()))
        };
        run(&mut pieces).map_err(|e| Failure::Internal(e.to_string()))?;
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|token| token.id));
        }
        Ok(())
    }

    /// A guard breaks the match of the added token that it stands in, so what still matches is the template's own. The
    /// text between is encoded without guards and without a second look for added tokens, so that its ids are those of
    /// the text alone.
    fn encode_guarded(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let found = self
            .inner
            .get_added_vocabulary()
            .extract_and_normalize(None::<&NormalizerWrapper>, text);
        let splits = found.get_splits(OffsetReferential::Original, OffsetType::None);
        let mut pieces: Vec<Piece> = Vec::new();
        for (index, (content, _, tokens)) in splits.iter().enumerate() {
            let token = tokens.as_ref().and_then(|t| t.first()).filter(|token| {
                // A token of one character cannot hold a guard; guards on both sides make it text.
                token.value.chars().nth(1).is_some()
                    || index == 0
                    || !splits[index - 1].0.ends_with(GUARD)
                    || !splits.get(index + 1).is_some_and(|next| next.0.starts_with(GUARD))
            });
            match (token, pieces.last_mut()) {
                (Some(token), _) => pieces.push(Piece::Id(token.id)),
                (None, Some(Piece::Text(before))) => before.push_str(content),
                (None, _) => pieces.push(Piece::Text((*content).to_owned())),
            }
        }
        let mut ids = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Id(id) => ids.push(id),
                Piece::Text(text) => self.append_plain(&remove_guards(&text), &mut ids)?,
            }
        }
        Ok(ids)
    }
}

fn require_byte_level(decoder: Option<&DecoderWrapper>) -> Result<(), Failure> {
    let name = match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => return Ok(()),
        Some(DecoderWrapper::Sequence(sequence)) => {
            let parts = sequence.get_decoders();
            if parts.iter().all(|part| matches!(part, DecoderWrapper::ByteLevel(_)))
                && parts.len() == 1
            {
                return Ok(());
            }
            "Sequence"
        }
        Some(DecoderWrapper::BPE(_)) => "BPEDecoder",
        Some(DecoderWrapper::WordPiece(_)) => "WordPiece",
        Some(DecoderWrapper::Metaspace(_)) => "Metaspace",
        Some(DecoderWrapper::CTC(_)) => "CTC",
        Some(DecoderWrapper::Replace(_)) => "Replace",
        Some(DecoderWrapper::Fuse(_)) => "Fuse",
        Some(DecoderWrapper::Strip(_)) => "Strip",
        Some(DecoderWrapper::ByteFallback(_)) => "ByteFallback",
        None => "none",
    };
    Err(Failure::Unsupported(format!("decoder {name} is not supported, only ByteLevel is")))
}

fn token_table(inner: &Tokenizer) -> Result<(Vec<u8>, Vec<Entry>), Failure> {
    let vocab: HashMap<String, u32> = inner.get_model().get_vocab();
    let added = inner.get_added_tokens_decoder();
    let largest = vocab.values().chain(added.keys()).copied().max().unwrap_or(0);
    if largest >= MAX_ID {
        return Err(Failure::Corrupt(format!("token id {largest} is out of range")));
    }
    if vocab.is_empty() && added.is_empty() {
        return Err(Failure::Corrupt("the vocabulary is empty".to_owned()));
    }
    let mut entries = vec![Entry::default(); largest as usize + 1];
    let mut bytes = Vec::new();
    let alphabet = ByteAlphabet::default();
    let mut store = |id: u32, flags: u32, append: &dyn Fn(&mut Vec<u8>)| {
        let start = bytes.len();
        append(&mut bytes);
        entries[id as usize] =
            Entry { start: start as u32, len: (bytes.len() - start) as u32, flags };
    };
    for (token, id) in &vocab {
        store(*id, KNOWN, &|out| alphabet.append(token, out));
    }
    // Added tokens are written as they read, and win over a vocabulary entry of the same id.
    for (id, token) in &added {
        let special = if token.special { SPECIAL } else { 0 };
        store(*id, KNOWN | ADDED | special, &|out| out.extend_from_slice(token.content.as_bytes()));
    }
    if bytes.len() > u32::MAX as usize {
        return Err(Failure::Corrupt("the vocabulary is larger than 4 GiB".to_owned()));
    }
    Ok((bytes, entries))
}
