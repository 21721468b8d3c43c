//! The byte-level alphabet: every byte is one printable character in a vocabulary file.

/// The table from characters below U+0180 to bytes; the alphabet ends at U+0143.
pub struct ByteAlphabet {
    bytes: [Option<u8>; 0x180],
}

impl Default for ByteAlphabet {
    fn default() -> Self {
        let mut bytes = [None; 0x180];
        let mut next = 0x100;
        for byte in 0..=255u8 {
            // Bytes that print in Latin-1 stand for themselves, the others move up in order.
            if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
                bytes[usize::from(byte)] = Some(byte);
            } else {
                bytes[next] = Some(byte);
                next += 1;
            }
        }
        ByteAlphabet { bytes }
    }
}

impl ByteAlphabet {
    /// Appends the bytes of a vocabulary entry: as the decoder does it, an entry with any character outside the
    /// alphabet stands for its own UTF-8.
    pub fn append(&self, token: &str, out: &mut Vec<u8>) {
        let start = out.len();
        for character in token.chars() {
            match self.bytes.get(character as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => {
                    out.truncate(start);
                    out.extend_from_slice(token.as_bytes());
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let alphabet = ByteAlphabet::default();
        let mut seen: Vec<u8> = alphabet.bytes.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn space_and_newline_have_their_usual_letters() {
        let alphabet = ByteAlphabet::default();
        let mut out = Vec::new();
        alphabet.append("\u{120}a\u{10a}", &mut out);
        assert_eq!(out, b" a\n");
    }

    #[test]
    fn characters_outside_the_alphabet_stand_for_themselves() {
        let alphabet = ByteAlphabet::default();
        let mut out = Vec::new();
        alphabet.append("\u{120}\u{2581}", &mut out);
        assert_eq!(out, "\u{120}\u{2581}".as_bytes());
    }
}
