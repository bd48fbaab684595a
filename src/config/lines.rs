//! The line on which each section of the file begins, and the keys that it sets: `dripd explain` shows them as the
//! origin of a value.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::model::source::{Part, Source};

/// Find the sections of a configuration in its text, which is known to be TOML.
pub fn source_of(text: &str, path: Option<&Path>, host: &str) -> Source {
    let mut source =
        Source { host: host.to_owned(), path: path.map(|path| path.display().to_string()), ..Source::default() };
    let Ok(root) = DeTable::parse(text) else { return source };
    let ends: Vec<usize> = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
    let part = |value: &Spanned<DeValue>| Part {
        line: u32::try_from(1 + ends.partition_point(|end| *end < value.span().start)).ok(),
        keys: match value.get_ref() {
            DeValue::Table(table) => {
                let keys = table.keys().map(|key| key.get_ref().to_string());
                keys.filter(|key| key != "match").collect() // `match` says for which names, and sets nothing
            }
            _ => Vec::new(),
        },
        ..Part::default()
    };
    for (key, value) in root.get_ref() {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("defaults", _) => source.defaults = part(value),
            ("limits", _) => source.limits = part(value),
            ("bucket", DeValue::Array(entries)) => source.buckets = entries.iter().map(part).collect(),
            ("budget", DeValue::Array(entries)) => source.budgets = entries.iter().map(part).collect(),
            _ => {}
        }
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let source = source_of(text, Some(Path::new("/etc/dripd/config.toml")), "web1");
        assert_eq!((source.host.as_str(), source.path.as_deref()), ("web1", Some("/etc/dripd/config.toml")));
        let part = |part: &Part| format!("{} {}", part.line.unwrap_or(0), part.keys.join(","));
        let buckets: Vec<_> = source.buckets.iter().map(part).collect();
        format!("{} | {} | {}", part(&source.defaults), buckets.join(" ; "), part(&source.limits))
    }

    #[test]
    fn a_section_is_found_by_the_line_of_its_header_and_knows_what_it_names() {
        let text = "# a comment\n\n[defaults]\nrate = '5/s'\n  backoff = { initial = '1s' }\n\n[[bucket]]\nmatch = 'a'\n\
                    # [[bucket]]\ncapacity = 3\n[limits]\nbatch = 5\n[[bucket]]\nmatch = '''\n[[bucket]]\n'''\n";
        assert_eq!(shown(text), "3 backoff,rate | 7 capacity ; 13  | 11 batch");
        assert_eq!(shown(&text.replace('\n', "\r\n")), shown(text), "whatever ends a line");
    }

    #[test]
    fn budgets_have_lines_too() {
        let text = "[[budget]]\nmatch = 'a'\nrate = '5/s'\n\n[[budget]]\nmatch = 'b:*'\nwithin = 'a'\nquota = '1/d'\n";
        let source = source_of(text, None, "web1");
        let lines: Vec<_> = source.budgets.iter().map(|part| (part.line, part.keys.join(","))).collect();
        assert_eq!(lines, [(Some(1), "rate".to_owned()), (Some(5), "quota,within".to_owned())]);
        let json = serde_json::to_value(&source).expect("json");
        assert_eq!(
            (json["budgets"][1]["line"].as_u64(), json["budgets"][0]["keys"][0].as_str()),
            (Some(5), Some("rate"))
        );
        let without = serde_json::to_value(source_of("", None, "web1")).expect("json");
        assert!(without.get("budgets").is_none(), "{without}");
        let old: Source = serde_json::from_value(without).expect("what an older version stored can be read");
        assert_eq!(old.budgets, []);
    }

    #[test]
    fn sections_are_found_however_they_are_written() {
        let text = "bucket = [\n  { match = 'a', rate = '1/s' },\n  { match = 'b' },\n]\ndefaults.capacity = 3\n\
                    [limits]\nmax_ready = 1\n";
        assert_eq!(shown(text), "5 capacity | 2 rate ; 3  | 6 max_ready");
        let text =
            "[redis]\n[defaults.backoff]\ninitial = '1s'\n[[bucket]]\nmatch = 'a'\n[bucket.backoff]\nmax = '1s'\n";
        assert_eq!(shown(text), "2 backoff | 4 backoff | 0 ");
        assert_eq!(shown(""), "0  |  | 0 ");
    }
}
