//! Subjects: what a change at run time is for, a bucket or a budget, by its name or a glob. Both kinds are stored side by side: a
//! budget stands in braces, which no name of either kind can hold.

use std::fmt;

/// What a change is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject<'a> {
    /// Whether budgets are meant.
    pub is_budget: bool,
    /// A name or a glob.
    pub pattern: &'a str,
}

impl<'a> Subject<'a> {
    /// Read one as it is stored.
    pub fn of_stored(stored: &'a str) -> Self {
        let inside = stored.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        Self { is_budget: inside.is_some(), pattern: inside.unwrap_or(stored) }
    }

    /// As it is stored.
    pub fn stored(&self) -> String {
        if self.is_budget { format!("{{{}}}", self.pattern) } else { self.pattern.to_owned() }
    }

    /// The word for its kind.
    pub fn kind(&self) -> &'static str {
        if self.is_budget { "budget" } else { "bucket" }
    }

    /// With the pattern in quotes, for the middle of a sentence.
    pub fn quoted(&self) -> String {
        if self.is_budget { format!("budget {:?}", self.pattern) } else { format!("{:?}", self.pattern) }
    }
}

/// A budget says that it is one.
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
