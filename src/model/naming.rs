//! Whether an argument names one bucket or budget, or is a glob: one rule for all that people write, and the way out for whoever
//! meant the other.

use super::escape::shell;
use super::glob::{Glob, is_glob, of_name};

/// The name that an argument means: a text without special characters means itself, and `\\` makes the next byte plain.
/// `None`: it is a glob.
pub fn name_in(text: &str) -> Option<String> {
    if is_glob(text) { Glob::parse(text).only_name() } else { Some(text.to_owned()) }
}

/// How a name is written where a glob may stand as well, so that no byte of it is special.
pub fn written(name: &str) -> String {
    let name_only = of_name(name);
    if name_only == name { name_only } else { name_only.replace(']', "\\]") }
}

/// That a text is a glob, and the way out for whoever meant a name.
pub fn is_a_glob(text: &str) -> String {
    format!("{text:?} is a glob: for the one of this very name write {}", shell(&written(text)))
}

/// The same of a glob that does not match the name that it looks like: `h[1]` matches `h1` and not itself.
pub fn not_itself(text: &str) -> Option<String> {
    let is_meant = name_in(text).is_some() || Glob::parse(text).matches(text.as_bytes());
    (!is_meant).then(|| is_a_glob(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_means_one_name_or_is_a_glob_with_a_way_out() {
        for (text, name) in [
            ("acme", Some("acme")),
            ("", Some("")),
            (r"h\[1\]", Some("h[1]")),
            (r"h\[1]", Some("h[1]")),
            (r"a\*b\\", Some(r"a*b\")),
            (r"a\", Some(r"a\")),
            ("sms:*", None),
            ("h[1]", None),
            ("a?", None),
            (r"\[*", None),
        ] {
            assert_eq!(name_in(text).as_deref(), name, "{text}");
        }
        let way_out = r#""h[1]" is a glob: for the one of this very name write 'h\[1\]'"#;
        assert_eq!(not_itself("h[1]").as_deref(), Some(way_out));
        assert_eq!(not_itself("[2001:db8::1]").as_deref().map(|text| text.contains(r"'\[2001:db8::1\]'")), Some(true));
        for text in ["sms:*", "a?", "acme", r"h\[1\]", "[[]x*"] {
            assert_eq!(not_itself(text).is_some(), text == "[[]x*", "{text}");
        }
    }

    #[test]
    fn a_written_name_means_that_name() {
        for name in ["acme", "h[1]", "a]b", r"a\]", "*", "[2001:db8::1]", r"\", "a?[^b-c]"] {
            assert_eq!(name_in(&written(name)).as_deref(), Some(name), "{name}");
        }
        assert_eq!((written("h[1]"), written("a]b")), (r"h\[1\]".to_owned(), "a]b".to_owned()));
    }
}
