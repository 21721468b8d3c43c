//! Which tokens may come next under a grammar: the `llguidance` crate behind a vocabulary, a compiled grammar and a
//! matcher. Everything that reads a grammar's text runs under limits, for the text comes from a request.

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{regex_to_lark, Matcher, ParserFactory};

use crate::Failure;

/// The trie cannot hold a longer token: such a one is never allowed.
const MAX_TOKEN_BYTES: usize = 1024;
/// Its ids have 24 bits.
const MAX_TOKENS: usize = 1 << 23;
/// Compiling recurses once per rule of a chain and once per property of an object.
const COMPILE_STACK: usize = 256 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrammarKind {
    JsonSchema,
    Regex,
    Lark,
}

/// What a token is to a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenUse {
    Text,
    /// Only where the grammar names it.
    Marker,
    Never,
}

/// The tokens of a model as grammars see them.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Ids that stand for something.
    usable: SimpleVob,
    ends: Vec<u32>,
}

impl Vocabulary {
    /// `token(id)` gives the bytes of a token and its use.
    pub fn new<'a>(
        size: usize,
        token: impl Fn(usize) -> (&'a [u8], TokenUse),
        ends: &[u32],
    ) -> Result<Self, Failure> {
        if size == 0 || size > MAX_TOKENS {
            return Err(Failure::Unsupported(format!("a vocabulary of {size} tokens")));
        }
        let Some(&first_end) = ends.first() else {
            return Err(Failure::Invalid("a grammar needs an end token".to_owned()));
        };
        if let Some(bad) = ends.iter().find(|&&end| end as usize >= size) {
            return Err(Failure::Invalid(format!("end token {bad} is not in the vocabulary")));
        }
        let words: Vec<Vec<u8>> = (0..size).map(|id| word(token(id))).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, first_end), &words);
        let trie = trie.with_eos_tokens(ends);
        let mut usable = trie.alloc_token_set();
        for (id, word) in words.iter().enumerate() {
            if !word.is_empty() || ends.contains(&(id as u32)) {
                usable.allow_token(id as u32);
            }
        }
        // Not canonical: any spelling of the allowed text is allowed, as drafts and the model see fit.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| Failure::Internal(e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Vocabulary { factory, usable, ends: ends.to_vec() })
    }

    pub fn compile(&self, kind: GrammarKind, text: &str) -> Result<Grammar, Failure> {
        let parsed = match kind {
            GrammarKind::JsonSchema => TopLevelGrammar::from_json_schema(
                serde_json::from_str(text).map_err(|e| Failure::Invalid(e.to_string()))?,
            ),
            GrammarKind::Regex => {
                TopLevelGrammar::from_lark(format!("start: /{}/", regex_to_lark(text, "dw")))
            }
            GrammarKind::Lark => TopLevelGrammar::from_lark(text.to_owned()),
        };
        let matcher = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(COMPILE_STACK)
                .spawn_scoped(scope, || Matcher::new(self.factory.create_parser(parsed)))
                .map_err(|e| Failure::Internal(format!("no thread to compile a grammar: {e}")))?
                .join()
                .map_err(|_| Failure::Invalid("the grammar cannot be compiled".to_owned()))
        })?;
        match matcher.get_error() {
            Some(message) => Err(Failure::Invalid(plain(&message))),
            None => {
                Ok(Grammar { start: matcher, usable: self.usable.clone(), ends: self.ends.clone() })
            }
        }
    }
}

/// A marker's word begins with a byte that no text has, and text with that byte is no text.
fn word((bytes, how): (&[u8], TokenUse)) -> Vec<u8> {
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    match how {
        _ if bytes.is_empty() || bytes.len() >= MAX_TOKEN_BYTES => Vec::new(),
        TokenUse::Never => Vec::new(),
        TokenUse::Marker => [&[marker], bytes].concat(),
        TokenUse::Text if bytes.contains(&marker) => Vec::new(),
        TokenUse::Text => bytes.to_vec(),
    }
}

fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// The crate's message without what it adds for its own developers.
fn plain(message: &str) -> String {
    let end = ["\n<backtrace>", "\n<non-verbose/>"]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min()
        .unwrap_or(message.len());
    message[..end].to_owned()
}

/// Compiled: where every answer starts.
pub struct Grammar {
    start: Matcher,
    usable: SimpleVob,
    ends: Vec<u32>,
}

/// Answers start on any thread.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Vocabulary>();
    shared::<Grammar>();
    fn moved<T: Send>() {}
    moved::<GrammarMatcher>();
};

impl Grammar {
    pub fn start(&self) -> GrammarMatcher {
        GrammarMatcher {
            // Its own lexer tables: an answer that exhausts them ends alone.
            inner: self.start.deep_clone(),
            start: self.start.deep_clone(),
            usable: self.usable.clone(),
            ends: self.ends.clone(),
            tokens: Vec::new(),
            extra_ends: 0,
        }
    }
}

/// A place in a grammar.
pub struct GrammarMatcher {
    inner: Matcher,
    start: Matcher,
    usable: SimpleVob,
    ends: Vec<u32>,
    /// Accepted by `inner`.
    tokens: Vec<u32>,
    /// End tokens accepted after `inner` was done.
    extra_ends: usize,
}

impl GrammarMatcher {
    /// Writes one bit per token.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), Failure> {
        let mut mask = self
            .inner
            .compute_mask_or_eos()
            .map_err(|e| Failure::Invalid(plain(&e.to_string())))?;
        mask.and(&self.usable);
        words.fill(0);
        for (to, from) in words.iter_mut().zip(mask.as_slice()) {
            *to = *from;
        }
        Ok(())
    }

    /// False, and nothing changes, when the token is not allowed.
    pub fn accept(&mut self, token: u32) -> Result<bool, Failure> {
        if !self.is_usable(token) {
            return Ok(false);
        }
        if self.inner.is_stopped() {
            self.check()?;
            let is_end = self.ends.contains(&token);
            self.extra_ends += usize::from(is_end);
            return Ok(is_end);
        }
        let accepted = self
            .inner
            .try_consume_tokens(&[token])
            .map_err(|e| Failure::Invalid(plain(&e.to_string())))?;
        if accepted == 1 {
            self.tokens.push(token);
        }
        Ok(accepted == 1)
    }

    pub fn rollback(&mut self, count: usize) -> Result<(), Failure> {
        let extra = count.min(self.extra_ends);
        let count = count - extra;
        if count > self.tokens.len() {
            return Err(Failure::Invalid(format!(
                "cannot take back {count} of {} tokens",
                self.tokens.len()
            )));
        }
        self.extra_ends -= extra;
        self.tokens.truncate(self.tokens.len() - count);
        if count == 0 || self.inner.rollback(count).is_ok() {
            return Ok(());
        }
        // Grammars with stop strings or token limits cannot go back: begin anew.
        self.inner = self.start.deep_clone();
        self.inner
            .consume_tokens(&self.tokens)
            .map_err(|e| Failure::Internal(plain(&e.to_string())))
    }

    /// How many of `tokens` in a row would be accepted.
    pub fn num_allowed(&mut self, tokens: &[u32]) -> Result<usize, Failure> {
        let known = tokens.iter().take_while(|&&token| self.is_usable(token)).count();
        let tokens = &tokens[..known];
        let mut allowed = 0;
        if self.inner.is_stopped() {
            self.check()?;
        } else {
            allowed = self
                .inner
                .validate_tokens(tokens)
                .map_err(|e| Failure::Invalid(plain(&e.to_string())))?;
            if !tokens[..allowed].last().is_some_and(|last| self.ends.contains(last)) {
                return Ok(allowed);
            }
        }
        let ends = tokens[allowed..].iter().take_while(|token| self.ends.contains(token));
        Ok(allowed + ends.count())
    }

    /// What was said is a whole sentence.
    pub fn is_complete(&mut self) -> bool {
        if self.inner.is_stopped() {
            return !self.inner.is_error();
        }
        self.inner.is_accepting().unwrap_or(false)
    }

    /// And nothing but an end may follow.
    pub fn is_stopped(&self) -> bool {
        self.inner.is_stopped()
    }

    fn is_usable(&self, token: u32) -> bool {
        (token as usize) < self.usable.len() && self.usable.is_allowed(token)
    }

    fn check(&self) -> Result<(), Failure> {
        match self.inner.get_error() {
            Some(message) => Err(Failure::Invalid(plain(&message))),
            None => Ok(()),
        }
    }
}
