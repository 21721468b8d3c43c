//! Which tokens may come next under a grammar: the `llguidance` crate behind a vocabulary, a compiled grammar and a
//! matcher. Everything that reads a grammar's text runs under limits, for the text comes from a request.

use std::sync::{mpsc, Arc, Condvar, Mutex};
use std::time::Duration;

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
const MAX_MESSAGE: usize = 1_000;
/// The limits below keep what is known to be slow far under this; it is for what is not known.
const COMPILE_TIME: Duration = Duration::from_millis(900);
/// Compilations at one time, with those that nobody waits for any more.
const MAX_AT_WORK: usize = 4;

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
    factory: Arc<ParserFactory>,
    gate: Arc<Gate>,
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
        Ok(Vocabulary {
            factory: Arc::new(factory),
            gate: Arc::default(),
            usable,
            ends: ends.to_vec(),
        })
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
        Ok(Grammar {
            start: self.compile_aside(parsed)?,
            usable: self.usable.clone(),
            ends: self.ends.clone(),
        })
    }
}

impl Vocabulary {
    /// On a thread of its own: with room for recursion, and left behind when it takes too long.
    fn compile_aside(&self, grammar: TopLevelGrammar) -> Result<Matcher, Failure> {
        let work = Work::begin(&self.gate)?;
        let factory = self.factory.clone();
        let (sender, receiver) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(COMPILE_STACK)
            .spawn(move || {
                let mut matcher = Matcher::new(factory.create_parser(grammar));
                // The first mask is part of it: a grammar that has none is found out here.
                let result = matcher.compute_mask_or_eos();
                let result =
                    result.map(|_| matcher).map_err(|e| Failure::Invalid(plain(&e.to_string())));
                drop(work);
                // Nobody listens when it took too long.
                let _ = sender.send(result);
            })
            .map_err(|e| Failure::Internal(format!("no thread to compile a grammar: {e}")))?;
        receiver.recv_timeout(COMPILE_TIME).unwrap_or_else(|e| {
            Err(Failure::Invalid(match e {
                mpsc::RecvTimeoutError::Timeout => {
                    "the grammar takes too long to compile".to_owned()
                }
                mpsc::RecvTimeoutError::Disconnected => "the grammar cannot be compiled".to_owned(),
            }))
        })
    }
}

/// How many compilations are at work; a new one waits for its turn.
#[derive(Default)]
struct Gate {
    at_work: Mutex<usize>,
    left: Condvar,
}

/// One of them.
struct Work(Arc<Gate>);

impl Work {
    fn begin(gate: &Arc<Gate>) -> Result<Self, Failure> {
        let broken = || Failure::Internal("the count of compilations is lost".to_owned());
        let at_work = gate.at_work.lock().map_err(|_| broken())?;
        let (mut at_work, waited) = gate
            .left
            .wait_timeout_while(at_work, COMPILE_TIME, |count| *count >= MAX_AT_WORK)
            .map_err(|_| broken())?;
        if waited.timed_out() {
            return Err(Failure::Invalid(
                "too many grammars are being compiled; try again later".to_owned(),
            ));
        }
        *at_work += 1;
        Ok(Work(gate.clone()))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Ok(mut at_work) = self.0.at_work.lock() {
            *at_work -= 1;
        }
        self.0.left.notify_one();
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
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 100_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// The crate's message without what it adds for its own developers, and without the whole of a long source.
fn plain(message: &str) -> String {
    if message.starts_with("NoExtensionBias") {
        return "the grammar allows nothing here".to_owned();
    }
    let end = ["\n<backtrace>", "\n<non-verbose/>"]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min()
        .unwrap_or(message.len());
    let message = &message[..end];
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    // What went wrong stands at either end.
    let mut head = MAX_MESSAGE / 2;
    while !message.is_char_boundary(head) {
        head -= 1;
    }
    let mut tail = message.len() - MAX_MESSAGE / 2;
    while !message.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{} ... {}", &message[..head], &message[tail..])
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
