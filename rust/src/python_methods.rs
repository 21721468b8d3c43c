//! Methods of Python's str that templates call: those where pycompat is missing or differs, then pycompat's.

use minijinja::value::{from_args, Tuple};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use crate::python::is_space;

pub fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(result) = string_method(text, method, args) {
            return result;
        }
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "strip" => strip(text, args, true, true),
        "lstrip" => strip(text, args, true, false),
        "rstrip" => strip(text, args, false, true),
        "split" if splits_at_spaces(args) => split_spaces(text, args, false),
        "split" => split_at(text, args, false),
        "rsplit" if splits_at_spaces(args) => split_spaces(text, args, true),
        "rsplit" => split_at(text, args, true),
        "splitlines" => split_lines(text, args),
        "partition" => partition(text, args, false),
        "rpartition" => partition(text, args, true),
        "removeprefix" => {
            affix(args).map(|p: &str| Value::from(text.strip_prefix(p).unwrap_or(text)))
        }
        "removesuffix" => {
            affix(args).map(|s: &str| Value::from(text.strip_suffix(s).unwrap_or(text)))
        }
        "title" => no_args(args).map(|()| Value::from(title(text))),
        "isspace" => {
            no_args(args).map(|()| Value::from(!text.is_empty() && text.chars().all(is_space)))
        }
        _ => return None,
    })
}

fn no_args(args: &[Value]) -> Result<(), Error> {
    from_args(args)
}

fn affix(args: &[Value]) -> Result<&str, Error> {
    let (part,): (&str,) = from_args(args)?;
    Ok(part)
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn strip(text: &str, args: &[Value], left: bool, right: bool) -> Result<Value, Error> {
    let (set,): (Option<&str>,) = from_args(args)?;
    let drops = |c: char| set.map_or_else(|| is_space(c), |set| set.contains(c));
    let mut rest = text;
    if left {
        rest = rest.trim_start_matches(drops);
    }
    if right {
        rest = rest.trim_end_matches(drops);
    }
    Ok(Value::from(rest))
}

/// str.title(): a letter after anything but a letter is upper case, every other is lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_letter = false;
    for c in text.chars() {
        if after_letter {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        after_letter = c.is_lowercase() || c.is_uppercase();
    }
    out
}

fn splits_at_spaces(args: &[Value]) -> bool {
    match args.first() {
        None => true,
        Some(first) => first.is_none() || first.is_kwargs(),
    }
}

/// The arguments of split and rsplit: sep, maxsplit; both may be given by name.
fn split_args(args: &[Value]) -> Result<(Option<String>, usize), Error> {
    let (sep, max, kwargs): (Option<Value>, Option<i64>, minijinja::value::Kwargs) =
        from_args(args)?;
    let sep = match sep {
        Some(sep) => Some(sep),
        None => kwargs.get("sep")?,
    };
    let max = match max {
        Some(max) => Some(max),
        None => kwargs.get("maxsplit")?,
    };
    kwargs.assert_all_used()?;
    let sep = match sep {
        Some(sep) if !sep.is_none() => {
            Some(sep.as_str().ok_or_else(|| invalid("the separator must be a string"))?.to_owned())
        }
        _ => None,
    };
    Ok((sep, max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX)))
}

fn split_spaces(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (sep, max) = split_args(args)?;
    if let Some(sep) = sep {
        return split_text(text, &sep, max, from_right);
    }
    let mut parts: Vec<Value> = Vec::new();
    let mut rest = if from_right {
        text.trim_end_matches(is_space)
    } else {
        text.trim_start_matches(is_space)
    };
    while !rest.is_empty() {
        if parts.len() >= max {
            let last = if from_right { rest.trim_end_matches(is_space) } else { rest };
            parts.push(Value::from(last));
            break;
        }
        if from_right {
            let start = rest
                .char_indices()
                .rev()
                .find(|(_, c)| is_space(*c))
                .map_or(0, |(index, c)| index + c.len_utf8());
            parts.push(Value::from(&rest[start..]));
            rest = rest[..start].trim_end_matches(is_space);
        } else {
            let end = rest.find(is_space).unwrap_or(rest.len());
            parts.push(Value::from(&rest[..end]));
            rest = rest[end..].trim_start_matches(is_space);
        }
    }
    if from_right {
        parts.reverse();
    }
    Ok(Value::from(parts))
}

fn split_at(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (sep, max) = split_args(args)?;
    split_text(text, sep.as_deref().unwrap_or_default(), max, from_right)
}

fn split_text(text: &str, sep: &str, max: usize, from_right: bool) -> Result<Value, Error> {
    if sep.is_empty() {
        return Err(invalid("empty separator"));
    }
    let limit = max.saturating_add(1);
    let mut parts: Vec<Value> = if from_right {
        text.rsplitn(limit, sep).map(Value::from).collect()
    } else {
        text.splitn(limit, sep).map(Value::from).collect()
    };
    if from_right {
        parts.reverse();
    }
    Ok(Value::from(parts))
}

fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep,): (Option<bool>,) = from_args(args)?;
    let keep = keep.unwrap_or(false);
    let mut lines: Vec<Value> = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((index, c)) = chars.next() {
        if !matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        ) {
            continue;
        }
        let mut end = index + c.len_utf8();
        if c == '\r' && chars.peek().is_some_and(|(_, next)| *next == '\n') {
            chars.next();
            end += 1;
        }
        lines.push(Value::from(&text[start..if keep { end } else { index }]));
        start = end;
    }
    if start < text.len() {
        lines.push(Value::from(&text[start..]));
    }
    Ok(Value::from(lines))
}

fn partition(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (sep,): (&str,) = from_args(args)?;
    if sep.is_empty() {
        return Err(invalid("empty separator"));
    }
    let found = if from_right { text.rfind(sep) } else { text.find(sep) };
    let parts = match found {
        Some(index) => [&text[..index], sep, &text[index + sep.len()..]],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}
