//! Subjects: the buckets or budgets, by name or glob, to which a change at run time applies. Both kinds are stored side
//! by side: a budget's pattern is stored in braces, which no name of either kind can contain.

use std::fmt;

/// The buckets or budgets to which a change applies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject<'a> {
    /// Whether the pattern is for budgets; otherwise it is for buckets.
    pub is_budget: bool,
    /// A name or a glob.
    pub pattern: &'a str,
}

impl<'a> Subject<'a> {
    /// Read a subject from its stored form.
    pub fn of_stored(stored: &'a str) -> Self {
        let inside = stored.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        Self { is_budget: inside.is_some(), pattern: inside.unwrap_or(stored) }
    }

    /// The stored form: the pattern, in braces for a budget.
    pub fn stored(&self) -> String {
        if self.is_budget { format!("{{{}}}", self.pattern) } else { self.pattern.to_owned() }
    }

    /// The word for the kind: `budget` or `bucket`.
    pub fn kind(&self) -> &'static str {
        if self.is_budget { "budget" } else { "bucket" }
    }

    /// The subject with its pattern in quotes, for the middle of a sentence.
    pub fn quoted(&self) -> String {
        if self.is_budget { format!("budget {:?}", self.pattern) } else { format!("{:?}", self.pattern) }
    }
}

/// Display with the word `budget` before the pattern of a budget, and the pattern alone for a bucket.
impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_budget { write!(f, "budget {}", self.pattern) } else { f.write_str(self.pattern) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_stored_in_braces_and_shown_without_them() {
        for (stored, is_budget, pattern, shown, quoted) in [
            ("acme", false, "acme", "acme", "\"acme\""),
            ("{acme}", true, "acme", "budget acme", "budget \"acme\""),
            ("{sms:*}", true, "sms:*", "budget sms:*", "budget \"sms:*\""),
        ] {
            let subject = Subject::of_stored(stored);
            assert_eq!(subject, Subject { is_budget, pattern });
            assert_eq!((subject.to_string().as_str(), subject.quoted().as_str()), (shown, quoted));
            assert_eq!(subject.stored(), stored);
        }
    }
}
