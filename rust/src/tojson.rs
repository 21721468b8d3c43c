//! `tojson` as Python's json.dumps writes it, with the defaults that transformers gives chat templates.

use minijinja::value::{from_args, Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};

use crate::guard::GUARD;
use crate::python::{float_repr, integer_text};

const MAX_DEPTH: usize = 1000;

struct Writer<'a> {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: &'a str,
    key_separator: &'a str,
}

/// The filter: `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let (given, kwargs): (&[Value], Kwargs) = from_args(&args)?;
    let option = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let option = match given.get(index) {
            Some(positional) => Some(positional.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(option.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ensure_ascii = option(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = option(1, "indent")?.map(|v| indent_text(&v)).transpose()?;
    let separators = option(2, "separators")?.map(|v| separator_pair(&v)).transpose()?;
    let sort_keys = option(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let (item_separator, key_separator) = match &separators {
        Some((item, key)) => (item.as_str(), key.as_str()),
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut writer = Writer {
        out: String::new(),
        ensure_ascii,
        sort_keys,
        indent,
        item_separator,
        key_separator,
    };
    writer.value(state, value, 0)?;
    Ok(writer.out)
}

fn indent_text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let width = if value.kind() == ValueKind::Bool {
        i64::from(value.is_true())
    } else {
        i64::try_from(value.clone())?
    };
    if width > 64 {
        return Err(invalid("tojson: indent is larger than 64"));
    }
    Ok(" ".repeat(width.max(0) as usize))
}

fn separator_pair(value: &Value) -> Result<(String, String), Error> {
    let parts: Vec<Value> = value.try_iter()?.collect();
    match &parts[..] {
        [item, key] => match (item.as_str(), key.as_str()) {
            (Some(item), Some(key)) => Ok((item.to_owned(), key.to_owned())),
            _ => Err(invalid("tojson: separators must be two strings")),
        },
        _ => Err(invalid("tojson: separators must be two strings")),
    }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

impl Writer<'_> {
    fn value(&mut self, state: &State, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        let before = self.out.len();
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => return self.sequence(state, value, depth),
            ValueKind::Map => return self.mapping(state, value, depth),
            ValueKind::Undefined => {
                return Err(invalid("Object of type Undefined is not JSON serializable"))
            }
            kind => return Err(invalid(format!("a {kind} is not JSON serializable"))),
        }
        state.consume_fuel(1 + ((self.out.len() - before) / 16) as u64)
    }

    fn number(&mut self, value: &Value) {
        match integer_text(value) {
            Some(text) => self.out.push_str(&text),
            None => {
                let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
                if number.is_nan() {
                    self.out.push_str("NaN");
                } else if number.is_infinite() {
                    self.out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
                } else {
                    self.out.push_str(&float_repr(number));
                }
            }
        }
    }

    fn sequence(&mut self, state: &State, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for item in value.try_iter()?.checked() {
            self.before_item(&mut any, depth);
            self.value(state, &item?, depth + 1)?;
        }
        self.close(']', any, depth);
        state.consume_fuel(1)
    }

    fn mapping(&mut self, state: &State, value: &Value, depth: usize) -> Result<(), Error> {
        let mut members: Vec<(String, Value)> = Vec::new();
        for key in value.try_iter()?.checked() {
            let key = key?;
            let member = value.get_item(&key)?;
            members.push((key_text(&key)?, member));
        }
        if self.sort_keys {
            members.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.out.push('{');
        let mut any = false;
        for (key, member) in &members {
            self.before_item(&mut any, depth);
            self.string(key);
            self.out.push_str(self.key_separator);
            self.value(state, member, depth + 1)?;
        }
        self.close('}', any, depth);
        state.consume_fuel(1 + members.len() as u64)
    }

    fn before_item(&mut self, any: &mut bool, depth: usize) {
        if *any {
            self.out.push_str(self.item_separator);
        }
        *any = true;
        self.line_break(depth + 1);
    }

    fn close(&mut self, bracket: char, any: bool, depth: usize) {
        if any {
            self.line_break(depth);
        }
        self.out.push(bracket);
    }

    fn line_break(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        use std::fmt::Write;
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                // A guard is no part of the text: escaping it would make it one.
                GUARD => self.out.push(GUARD),
                c if (c as u32) < 0x20 => {
                    let _ = write!(self.out, "\\u{:04x}", c as u32);
                }
                c if self.ensure_ascii && (c as u32) >= 0x7f => {
                    let mut units = [0u16; 2];
                    for unit in c.encode_utf16(&mut units) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A mapping's key as json.dumps converts it.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        ValueKind::Number => match integer_text(key) {
            Some(text) => text,
            None => float_repr(f64::try_from(key.clone())?),
        },
        kind => return Err(invalid(format!("a {kind} cannot be a JSON key"))),
    })
}
