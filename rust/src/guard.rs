//! Guards: a private-use character that keeps text from messages from being read as an added token.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, MatchKind};

pub const GUARD: char = '\u{E000}';

/// Bound on the squared lengths of all added tokens, far above what any model has.
const MAX_HEADS_SIZE: usize = 64 << 20;

/// Finds where text is an added token, or ends like the beginning of one, which what follows it could complete.
pub struct GuardFinder {
    tokens: AhoCorasick,
    first_char_len: Vec<usize>,
    heads: HashSet<String>, // proper prefixes of tokens
    longest: usize,         // bytes of the longest token
}

impl GuardFinder {
    pub fn new(contents: &[String]) -> Result<Self, String> {
        let contents: Vec<&str> =
            contents.iter().map(String::as_str).filter(|c| !c.is_empty()).collect();
        let heads_size: usize = contents.iter().map(|c| c.len().saturating_mul(c.len())).sum();
        if heads_size > MAX_HEADS_SIZE {
            return Err("the added tokens are too long".to_owned());
        }
        let tokens = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(&contents)
            .map_err(|e| e.to_string())?;
        let mut heads = HashSet::new();
        for content in &contents {
            for (index, _) in content.char_indices().skip(1) {
                heads.insert(content[..index].to_owned());
            }
        }
        Ok(GuardFinder {
            tokens,
            first_char_len: contents
                .iter()
                .map(|c| c.chars().next().map_or(0, char::len_utf8))
                .collect(),
            heads,
            longest: contents.iter().map(|c| c.len()).max().unwrap_or(0),
        })
    }

    /// The text with guards, and without those it had.
    pub fn guard(&self, text: &str) -> String {
        let clean = remove_guards(text);
        let mut places: Vec<usize> = Vec::new();
        for found in self.tokens.find_overlapping_iter(&clean) {
            let inside = found.start() + self.first_char_len[found.pattern().as_usize()];
            places.push(inside);
            if inside == found.end() {
                places.push(found.start()); // one character has no inside: guard both its sides
            }
        }
        if self.ends_in_head(&clean) {
            places.push(clean.len());
        }
        if places.is_empty() {
            return clean;
        }
        places.sort_unstable();
        places.dedup();
        let mut out = String::with_capacity(clean.len() + places.len() * GUARD.len_utf8());
        let mut done = 0;
        for place in places {
            out.push_str(&clean[done..place]);
            out.push(GUARD);
            done = place;
        }
        out.push_str(&clean[done..]);
        out
    }

    fn ends_in_head(&self, text: &str) -> bool {
        let longest = self.longest.min(text.len());
        (1..=longest).any(|n| text.get(text.len() - n..).is_some_and(|s| self.heads.contains(s)))
    }
}

pub fn remove_guards(text: &str) -> String {
    text.replace(GUARD, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder(tokens: &[&str]) -> GuardFinder {
        GuardFinder::new(&tokens.iter().map(|t| t.to_string()).collect::<Vec<_>>()).unwrap()
    }

    fn show(text: &str) -> String {
        text.replace(GUARD, "*")
    }

    #[test]
    fn ordinary_text_is_unchanged() {
        let f = finder(&["<|user|>", "</think>"]);
        for text in ["", "hello", "a < b", "\u{4f60}", "user|"] {
            assert_eq!(f.guard(text), text);
        }
    }

    #[test]
    fn every_look_alike_is_broken_even_when_they_overlap() {
        let f = finder(&["ab", "bc"]);
        assert_eq!(show(&f.guard("xabcx")), "xa*b*cx");
    }

    #[test]
    fn look_alikes_that_what_follows_could_complete_are_broken_at_the_end() {
        let f = finder(&["<|user|>"]);
        assert_eq!(show(&f.guard("x <|us")), "x <|us*");
        assert_eq!(show(&f.guard("er|> x")), "er|> x");
    }

    #[test]
    fn absurdly_long_tokens_are_refused() {
        assert!(GuardFinder::new(&["x".repeat(100_000)]).is_err());
    }

    #[test]
    fn stray_guards_are_dropped() {
        let f = finder(&["<x>"]);
        assert_eq!(show(&f.guard("a\u{E000}b <\u{E000}x>")), "ab <*x>");
    }

    #[test]
    fn a_token_of_one_character_is_guarded_on_both_sides() {
        let f = finder(&["#"]);
        assert_eq!(show(&f.guard("a#b")), "a*#*b");
    }
}
