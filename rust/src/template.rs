//! Chat templates: minijinja set up to give what transformers gives them, and bounded.

use std::fmt;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};

use crate::python::{is_space, py_str};
use crate::{python_methods, tojson, Failure};

pub const MAX_FUEL: u64 = 10_000_000;
pub const MAX_OUTPUT: usize = 64 << 20;
pub const MAX_RECURSION: usize = 450; // the engine's units: about 64 nested macro calls
const MAX_SOURCE: usize = 1 << 20;
const MAX_DEPTH: usize = 512;
const STACK: usize = 2 << 30;
const NAME: &str = "chat_template";

pub struct ChatTemplate {
    env: Environment<'static>,
}

impl ChatTemplate {
    pub fn parse(source: &str) -> Result<Self, Failure> {
        if source.len() > MAX_SOURCE {
            return Err(Failure::Corrupt(format!(
                "the template is larger than {} KiB",
                MAX_SOURCE >> 10
            )));
        }
        on_deep_stack(|| Self::parse_here(source))
    }

    fn parse_here(source: &str) -> Result<Self, Failure> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| Failure::Internal(e.to_string()))?;
        env.set_syntax(syntax);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_fuel(Some(MAX_FUEL));
        env.set_recursion_limit(MAX_RECURSION);
        env.set_unknown_method_callback(python_methods::call);
        env.set_formatter(|out, state, value| match value.as_str() {
            Some(text) => Ok(out.write_str(text)?),
            None => {
                let text = py_str(state, value)?;
                Ok(out.write_str(&text)?)
            }
        });
        env.add_filter("tojson", tojson::tojson);
        env.add_filter("string", |state: &State, value: &Value| py_str(state, value));
        env.add_filter("trim", trim);
        env.add_test("iterable", is_iterable);
        env.add_test("sequence", is_iterable);
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", strftime_now);
        env.add_template_owned(NAME, without_generation_tags(source))
            .map_err(|e| Failure::Corrupt(describe(&e, Some(source))))?;
        Ok(ChatTemplate { env })
    }

    pub fn render(&self, variables: &str) -> Result<String, Failure> {
        on_deep_stack(|| self.render_here(variables))
    }

    fn render_here(&self, variables: &str) -> Result<String, Failure> {
        if nesting(variables) > MAX_DEPTH {
            return Err(Failure::Invalid(format!(
                "the template's variables are nested deeper than {MAX_DEPTH}"
            )));
        }
        let mut reader = serde_json::Deserializer::from_str(variables);
        reader.disable_recursion_limit();
        let parsed: serde_json::Value = serde::de::Deserialize::deserialize(&mut reader)
            .map_err(|e| Failure::Invalid(format!("the template's variables are not JSON: {e}")))?;
        let template = self.env.get_template(NAME).map_err(|e| Failure::Internal(e.to_string()))?;
        let mut out = BoundedText::default();
        match template.render_captured_to(to_value(parsed), &mut out) {
            Ok(_) => String::from_utf8(out.bytes).map_err(|e| Failure::Internal(e.to_string())),
            Err(_) if out.full => Err(Failure::Invalid(format!(
                "the template wrote more than {} MiB",
                MAX_OUTPUT >> 20
            ))),
            Err(error) => Err(Failure::Invalid(describe(&error, None))),
        }
    }
}

/// Runs on a thread of its own: the engine parses, walks and drops nested things by recursion, and fuel allows a
/// template to nest values millions deep. The stack is address space; only what is used takes memory.
fn on_deep_stack<T: Send>(body: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, body)
            .map_err(|e| Failure::Internal(format!("no thread for the template: {e}")))?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[derive(Default)]
struct BoundedText {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Deepest nesting of brackets outside strings, whatever the text.
fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn to_value(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text),
        serde_json::Value::Array(items) => {
            Value::from(items.into_iter().map(to_value).collect::<Vec<_>>())
        }
        serde_json::Value::Object(members) => {
            Value::from_pairs(members.into_iter().map(|(key, member)| (key, to_value(member))))
        }
    }
}

/// The error's own words, then where. `source` is given when the template did not parse, to find the column.
fn describe(error: &Error, source: Option<&str>) -> String {
    let mut text = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => format!("the template ran for more than {MAX_FUEL} steps"),
        (_, Some(detail)) => detail.to_owned(),
        (kind, None) => kind.to_string(),
    };
    if error.detail().is_some_and(|d| d.is_empty()) {
        text = error.kind().to_string();
    }
    let Some(line) = error.line() else {
        return text;
    };
    let mut place = format!("line {line}");
    if let Some(source) = source {
        let column = error.range().map_or(1, |range| {
            let start = range.start.min(source.len());
            let line_start =
                source.as_bytes()[..start].iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
            String::from_utf8_lossy(&source.as_bytes()[line_start..start]).chars().count() + 1
        });
        place = format!("{place} column {column}");
    }
    fmt::Write::write_fmt(&mut text, format_args!(" ({place})")).ok();
    text
}

/// `{% generation %}` marks the assistant's own tokens for training; for rendering it is a scope. Both tags keep their
/// length, so that columns in messages stay right.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        out.push_str(before);
        rest = tag;
        let Some(close) = tag.find("%}") else { break };
        let inside = &tag[..close];
        let word = inside.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        let scope = match word {
            "generation" => "with      ",
            "endgeneration" => "endwith      ",
            _ => continue,
        };
        out.push_str(&inside.replacen(word, scope, 1));
        rest = &tag[close..];
    }
    out.push_str(rest);
    out
}

/// What Python can iterate over, or index: everything here but scalars.
fn is_iterable(value: &Value) -> bool {
    !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number)
}

fn trim(state: &State, value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = py_str(state, value)?;
    Ok(match chars {
        Some(set) => text.trim_matches(|c| set.contains(c)).to_owned(),
        None => text.trim_matches(is_space).to_owned(),
    })
}

fn raise_exception(state: &State, message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, py_str(state, message)?))
}

/// strftime of the local time now, as datetime.now().strftime(format).
fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    const MAX_RESULT: usize = 4096;
    state.consume_fuel(100)?;
    if format.is_empty() {
        return Ok(String::new());
    }
    let refuse =
        || Error::new(ErrorKind::InvalidOperation, "strftime_now: the format is not usable");
    // A leading character that is always written tells an empty result from a full buffer.
    let format = std::ffi::CString::new(format!("x{format}")).map_err(|_| refuse())?;
    let mut buffer = vec![0u8; MAX_RESULT];
    let written = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut parts).is_null() {
            return Err(refuse());
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &parts)
    };
    if written == 0 {
        return Err(refuse());
    }
    Ok(String::from_utf8_lossy(&buffer[1..written]).into_owned())
}
