//! Values as Python's str() and repr() write them.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

const MAX_DEPTH: usize = 1000;

/// The digits of an integer value, None for any other value.
pub fn integer_text(value: &Value) -> Option<String> {
    (value.kind() == ValueKind::Number && value.is_integer()).then(|| value.to_string())
}

/// A float as repr() writes it: shortest digits, an exponent below 1e-4 and from 1e16.
pub fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// str(value): what `{{ value }}` prints. Costs fuel as it goes, since a small value can print without end when its
/// parts are shared.
pub fn py_str(state: &State, value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Undefined => Ok(String::new()),
        _ => {
            let mut out = String::new();
            repr(state, &mut out, value, 0)?;
            Ok(out)
        }
    }
}

fn repr(state: &State, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "the value is nested too deeply to print",
        ));
    }
    let before = out.len();
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match integer_text(value) {
            Some(text) => out.push_str(&text),
            None => out.push_str(&float_repr(f64::try_from(value.clone())?)),
        },
        ValueKind::String => string_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => return sequence_repr(state, out, value, depth),
        ValueKind::Map => return mapping_repr(state, out, value, depth),
        _ => write!(out, "{value}")?,
    }
    state.consume_fuel(1 + ((out.len() - before) / 16) as u64)
}

fn sequence_repr(
    state: &State,
    out: &mut String,
    value: &Value,
    depth: usize,
) -> Result<(), Error> {
    let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
    out.push(open);
    let mut count = 0;
    for item in value.try_iter()?.checked() {
        if count > 0 {
            out.push_str(", ");
        }
        count += 1;
        repr(state, out, &item?, depth + 1)?;
    }
    if count == 1 && value.is_tuple() {
        out.push(',');
    }
    out.push(close);
    state.consume_fuel(1)
}

fn mapping_repr(state: &State, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    out.push('{');
    for (index, key) in value.try_iter()?.checked().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        let key = key?;
        repr(state, out, &key, depth + 1)?;
        out.push_str(": ");
        repr(state, out, &value.get_item(&key)?, depth + 1)?;
    }
    out.push('}');
    state.consume_fuel(1)
}

fn string_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if !is_printable(c) => {
                let _ = match c as u32 {
                    code @ 0..=0xff => write!(out, "\\x{code:02x}"),
                    code @ 0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// str.isprintable() of one character, as far as templates meet it: not a control, format, separator, surrogate or
/// private-use character. Unassigned characters count as printable.
fn is_printable(c: char) -> bool {
    !matches!(c as u32,
        0..=0x1f | 0x7f..=0xa0 | 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891
        | 0x8e2 | 0x1680 | 0x180e | 0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x2064
        | 0x2066..=0x206f | 0x3000 | 0xe000..=0xf8ff | 0xfeff | 0xfff9..=0xfffb
        | 0x110bd | 0x110cd | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0001
        | 0xe0020..=0xe007f | 0xf0000..=0xffffd | 0x100000..=0x10fffd)
}

/// str.isspace() of one character: Unicode's White_Space and the four information separators.
pub fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (number, text) in [
            (3.0, "3.0"),
            (0.1, "0.1"),
            (1e-7, "1e-07"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e15, "1000000000000000.0"),
            (-0.0, "-0.0"),
            (1e300, "1e+300"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float_repr(number), text);
        }
    }

    #[test]
    fn strings_print_as_in_python() {
        for (text, shown) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("\"'", "'\"\\''"),
            ("\n\u{1}\u{200d}\u{1f600}\u{e0067}", "'\\n\\x01\\u200d\u{1f600}\\U000e0067'"),
        ] {
            let mut out = String::new();
            string_repr(&mut out, text);
            assert_eq!(out, shown);
        }
    }
}
