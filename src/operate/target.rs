//! Targets of commands: one bucket or budget by its name, or all that a glob matches.

use crate::model::bucket::{BadBucketName, BucketName};
use crate::model::glob::{has_plain_byte, is_glob};
use crate::model::subject::Subject;

/// The buckets or budgets that a command acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    is_budget: bool,
    pattern: String,
    is_glob: bool,
}

impl Target {
    /// One bucket or budget.
    pub fn named(is_budget: bool, name: &BucketName) -> Self {
        Self { is_budget, pattern: name.as_str().to_owned(), is_glob: false }
    }

    /// Read a name or a glob.
    ///
    /// # Errors
    ///
    /// The text is neither a glob nor a valid name.
    pub fn parse(is_budget: bool, pattern: &str) -> Result<Self, BadBucketName> {
        if is_glob(pattern) {
            return Ok(Self { is_budget, pattern: pattern.to_owned(), is_glob: true });
        }
        BucketName::parse(pattern.as_bytes()).map(|name| Self::named(is_budget, &name))
    }

    /// Whether it is a glob.
    pub fn is_glob(&self) -> bool {
        self.is_glob
    }

    /// Whether the target is a glob without a literal byte, such as `*`, which may match every bucket or every budget.
    pub fn is_everything(&self) -> bool {
        !has_plain_byte(&self.pattern)
    }

    /// The name or the glob, and whether it is of budgets.
    pub fn subject(&self) -> Subject<'_> {
        Subject { is_budget: self.is_budget, pattern: &self.pattern }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_glob_or_must_be_a_name() {
        let parse = |text| Target::parse(false, text).map(|target| (target.is_glob(), target.is_everything()));
        assert_eq!(parse("acme"), Ok((false, false)));
        assert_eq!(parse("sms:*"), Ok((true, false)));
        assert_eq!(parse("*"), Ok((true, true)));
        for bad in ["", "{a}", "a\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
