//! The bucket, the id and the cost of each line of a file. The bucket may be the same for all; otherwise each is a
//! field of the line.

use std::str::FromStr;

use serde_json::Value;

use crate::model::bucket::BucketName;
use crate::model::escape;
use crate::store::submit::Options;

/// A path into a JSON object: `.a.b`.
#[derive(Debug, Clone)]
pub(super) struct Field(Vec<String>);

impl FromStr for Field {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names: Vec<String> = text.strip_prefix('.').unwrap_or_default().split('.').map(str::to_owned).collect();
        if names.iter().any(String::is_empty) { Err("write .field or .field.field") } else { Ok(Self(names)) }
    }
}

impl Field {
    /// The value of the field in a line: a string or a whole number, as text.
    fn text(&self, line: &Value) -> Result<String, String> {
        match self.0.iter().try_fold(line, |value, name| value.get(name)) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(n)) if n.is_i64() || n.is_u64() => Ok(n.to_string()),
            Some(_) => Err(format!(".{} is neither a string nor a whole number", self.0.join("."))),
            None => Err(format!("has no .{}", self.0.join("."))),
        }
    }

    fn id(&self, line: &Value) -> Result<String, String> {
        let id = self.text(line)?;
        let is_id = (1..=200).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        is_id.then_some(id).ok_or_else(|| format!(".{} is no id: 1 to 200 bytes of ! to ~", self.0.join(".")))
    }

    fn cost(&self, line: &Value) -> Result<u64, String> {
        let cost = self.text(line)?.parse().ok().filter(|cost| (1..=100_000).contains(cost));
        cost.ok_or_else(|| format!(".{} is no cost: a whole number, 1 to 100000", self.0.join(".")))
    }
}

/// The source of a line's bucket: one for all lines, or a field.
pub(super) enum Source {
    Bucket(BucketName),
    Field(Field),
}

/// The sources of a line's bucket, id and cost.
pub(super) struct Fields {
    pub(super) bucket: Source,
    pub(super) id: Option<Field>,
    pub(super) replaces: bool,
    pub(super) cost: Option<Field>,
}

impl Fields {
    /// The bucket and the options of a line; or the reason why no job can be made of it.
    pub(super) fn of(&self, line: &[u8]) -> Result<(BucketName, Options), String> {
        let plain = Options::default;
        if let (Source::Bucket(bucket), None, None) = (&self.bucket, &self.id, &self.cost) {
            return Ok((bucket.clone(), plain()));
        }
        let no_json = |why| match escape::byte_order_mark(line) {
            Some(mark) => format!("is no JSON: it begins with {mark}"),
            None => format!("is no JSON: {why}"),
        };
        let json: Value = serde_json::from_slice(line).map_err(no_json)?;
        let bucket = match &self.bucket {
            Source::Bucket(bucket) => bucket.clone(),
            Source::Field(field) => field.text(&json)?.parse().map_err(|why| format!("{why}"))?,
        };
        let id = self.id.as_ref().map(|field| field.id(&json)).transpose()?;
        let cost = self.cost.as_ref().map(|field| field.cost(&json)).transpose()?;
        Ok((bucket, Options { id, replaces: self.replaces, cost, ..plain() }))
    }
}
