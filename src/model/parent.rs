//! Parents: the value of `within`, which names the budget above a bucket or a budget. The value is a name, or a
//! template in which `{1}` stands for the text that the first `*` of the entry's own `match` matched.

use std::fmt;

use serde::Serialize;

use crate::model::bucket::MAX_BYTES;
use crate::model::glob::of_name;

/// The name of a budget, or a template for names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parent {
    text: Box<str>,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Part {
    /// Literal text.
    Plain(Box<str>),
    /// The text that the n-th `*` matched, from 1 on.
    Star(usize),
}

impl Parent {
    /// The valid forms in words, for error messages.
    pub const HINT: &'static str = "write the name of a budget, in which {1} stands for what the first * of match matched, as in \"twilio:{1}\": 1 to \
         200 bytes without control characters or other braces; \"\" is none";

    /// Read a name or a template.
    ///
    /// # Errors
    ///
    /// [`Self::HINT`] for a text that is neither.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (mut parts, mut rest, mut plain_bytes) = (Vec::new(), text, 0);
        while let Some(at) = rest.find(['{', '}']) {
            let (plain, behind) = rest.split_at(at);
            let inside = behind.strip_prefix('{').and_then(|behind| behind.split_once('}'));
            let (number, after) = inside.ok_or(Self::HINT)?;
            let is_number = number.len() <= 3 && number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
            let star = is_number.then(|| number.parse().ok()).flatten().ok_or(Self::HINT)?;
            plain_bytes += plain.len();
            parts.extend([Part::Plain(plain.into()), Part::Star(star)]);
            rest = after;
        }
        parts.push(Part::Plain(rest.into()));
        parts.retain(|part| !matches!(part, Part::Plain(plain) if plain.is_empty()));
        let fits = !text.is_empty() && plain_bytes + rest.len() <= MAX_BYTES && !text.chars().any(char::is_control);
        if fits { Ok(Self { text: text.into(), parts }) } else { Err(Self::HINT) }
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The largest n among its `{n}`; 0 for a plain name.
    pub fn highest(&self) -> usize {
        let star = |part: &Part| if let Part::Star(n) = part { *n } else { 0 };
        self.parts.iter().map(star).max().unwrap_or(0)
    }

    /// The glob that matches every name which the template can produce, where each `{n}` may be any text.
    pub fn glob(&self) -> String {
        let part = |part: &Part| match part {
            Part::Plain(plain) => of_name(plain),
            Part::Star(_) => "*".to_owned(),
        };
        self.parts.iter().map(part).collect()
    }
}

impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Parent {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_a_name_or_a_template() {
        for (text, highest, glob) in [
            ("twilio", 0, "twilio"),
            ("a*[b]?\\", 0, r"a\*\[b]\?\\"),
            ("twilio:{1}", 1, "twilio:*"),
            ("{2}:{1}", 2, "*:*"),
            ("{10}", 10, "*"),
            ("{1}{1}*", 1, r"**\*"),
            ("Zürich {1}", 1, "Zürich *"),
        ] {
            let parent = Parent::parse(text).expect(text);
            assert_eq!((parent.highest(), parent.glob().as_str(), parent.as_str()), (highest, glob, text));
        }
        assert!(Parent::parse(&("a".repeat(200) + "{1}")).is_ok());
        let long = "a".repeat(201);
        for bad in ["", "{", "}", "a{}", "{0}", "{01}", "{a}", "{1", "1}", "{{1}}", "{-1}", "{1000}", "a\nb", &long] {
            assert_eq!(Parent::parse(bad), Err(Parent::HINT), "{bad:?}");
        }
    }
}
