//! Targets of commands: one bucket or budget by its name, or all that a glob matches.

use crate::model::bucket::{BadBucketName, BucketName};
use crate::model::glob::has_plain_byte;
use crate::model::naming::{is_a_glob, name_in, not_itself};
use crate::model::subject::Subject;
use crate::store::Partitions;
use crate::store::change::Change;

/// The words about a name that no bucket with work has: it may be misspelt.
pub(super) const NO_JOB_WAITS: &str = "no job waits in a bucket of this name";

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

    /// Read a name or a glob: see [`name_in`].
    ///
    /// # Errors
    ///
    /// The text is neither a glob nor a valid name.
    pub fn parse(is_budget: bool, pattern: &str) -> Result<Self, BadBucketName> {
        let Some(name) = name_in(pattern) else {
            return Ok(Self { is_budget, pattern: pattern.to_owned(), is_glob: true });
        };
        BucketName::parse(name.as_bytes()).map(|name| Self::named(is_budget, &name))
    }

    /// Whether it is a glob.
    pub fn is_glob(&self) -> bool {
        self.is_glob
    }

    /// Whether the target is a glob without a literal byte, such as `*`, which may match every bucket or every budget.
    pub fn is_everything(&self) -> bool {
        self.is_glob && !has_plain_byte(&self.pattern)
    }

    /// That a glob does not match the one of this very name, and how that one is written.
    pub fn not_itself(&self) -> Option<String> {
        not_itself(&self.pattern).filter(|_| self.is_glob)
    }

    /// The target of a change that was made.
    pub(super) fn of_change(change: &Change) -> Self {
        let Subject { is_budget, pattern } = Subject::of_stored(&change.pattern);
        Self { is_budget, pattern: pattern.to_owned(), is_glob: change.is_glob }
    }

    /// What people should know of what they named: a glob that is taken for a name, or a name that no bucket with work
    /// has. It is no more than a hint: where the store cannot be asked there is none.
    pub(super) async fn note(&self, store: &Partitions) -> Option<String> {
        if self.is_glob || self.is_budget {
            return self.not_itself();
        }
        let bucket = BucketName::parse(self.pattern.as_bytes()).ok()?;
        let found = store.of(&bucket).bucket_status(&bucket).await.ok()?;
        (found.depth + found.retries + found.delayed == 0).then(|| NO_JOB_WAITS.to_owned())
    }

    /// The name or the glob, and whether it is of budgets.
    pub fn subject(&self) -> Subject<'_> {
        Subject { is_budget: self.is_budget, pattern: &self.pattern }
    }
}

/// Read the name of one bucket or budget, where a glob has no place.
///
/// # Errors
///
/// It is a glob, or no valid name.
pub fn one_name(text: &str) -> Result<BucketName, String> {
    let Some(name) = name_in(text) else {
        return Err(format!("one name is needed here, and {}", is_a_glob(text)));
    };
    BucketName::parse(name.as_bytes()).map_err(|why| why.to_string())
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
        assert_eq!(parse(r"h\[1\]"), Ok((false, false)), "a name whose special bytes are made plain");
        assert_eq!(
            Target::parse(false, r"h\[1\]").map(|target| target.subject().pattern.to_owned()),
            Ok("h[1]".into())
        );
        for bad in ["", "{a}", "a\n", r"\{"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(one_name(r"\[2001:db8::1\]").map(|name| name.to_string()), Ok("[2001:db8::1]".to_owned()));
        let why = one_name("sms:*").expect_err("a glob");
        assert_eq!(
            why,
            r#"one name is needed here, and "sms:*" is a glob: for the one of this very name write 'sms:\*'"#
        );
    }
}
