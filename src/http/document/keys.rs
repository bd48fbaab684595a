//! Schemas of the keys of a policy, as settings of buckets and budgets.

use serde_json::json;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AnyOfBuilder, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::config::keys::{BUDGET, Key, POLICY};
use crate::config::schema::{table, value};

/// An object of keys that are set for buckets: at least one.
pub(in crate::http) struct BucketKeys;

/// An object of keys of buckets, which may be empty.
pub(in crate::http) struct BucketKeysOrNone;

/// An object of keys that are set for budgets: at least one.
pub(in crate::http) struct BudgetKeys;

/// The value of any key of a bucket.
pub(in crate::http) struct BucketValue;

/// The value of any key of a budget.
pub(in crate::http) struct BudgetValue;

impl PartialSchema for BucketKeys {
    fn schema() -> RefOr<Schema> {
        RefOr::T(table(POLICY).min_properties(Some(1)).examples([json!({ "rate": "5/s" })]).into())
    }
}

impl PartialSchema for BucketKeysOrNone {
    fn schema() -> RefOr<Schema> {
        RefOr::T(table(POLICY).into())
    }
}

impl PartialSchema for BudgetKeys {
    fn schema() -> RefOr<Schema> {
        RefOr::T(table(BUDGET).min_properties(Some(1)).examples([json!({ "rate": "5/s" })]).into())
    }
}

impl PartialSchema for BucketValue {
    fn schema() -> RefOr<Schema> {
        any_of(POLICY)
    }
}

impl PartialSchema for BudgetValue {
    fn schema() -> RefOr<Schema> {
        any_of(BUDGET)
    }
}

impl ToSchema for BucketKeys {}

impl ToSchema for BucketKeysOrNone {}

impl ToSchema for BudgetKeys {}

impl ToSchema for BucketValue {}

impl ToSchema for BudgetValue {}

/// The names of the keys that may be set for buckets, or for budgets.
pub(super) fn names(is_budget: bool) -> impl Iterator<Item = &'static str> {
    if is_budget { BUDGET } else { POLICY }.iter().map(|key| key.name)
}

/// The value of one of these keys; the path says which key.
fn any_of(keys: &[Key]) -> RefOr<Schema> {
    let any = keys.iter().fold(AnyOfBuilder::new(), |any, key| any.item(value(key)));
    RefOr::T(any.description(Some("The value of the key that the path names")).examples(["5/s"]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_a_policy_and_a_budget_has_a_schema_that_takes_its_default() {
        for (keys, schema) in [(POLICY, BucketKeys::schema()), (BUDGET, BudgetKeys::schema())] {
            let mut whole = serde_json::to_value(schema).expect("JSON");
            let shapes: serde_json::Map<_, _> = super::super::shapes::all()
                .into_iter()
                .map(|(name, shape)| (name, serde_json::to_value(shape).expect("JSON")))
                .collect();
            whole["components"] = json!({ "schemas": shapes });
            let validator = jsonschema::validator_for(&whole).expect("a schema");
            for key in keys {
                let of_key = &whole["properties"][key.name];
                assert!(["type", "anyOf", "oneOf"].iter().any(|kind| of_key.get(kind).is_some()), "{}", key.name);
                let good = [key.default].into_iter().filter(|text| !text.is_empty());
                for text in good {
                    let value = format!("{} = {text}", key.name).parse::<toml::Table>().expect("a default");
                    let value = serde_json::to_value(value).expect("JSON");
                    assert!(validator.is_valid(&value), "{value}");
                }
                let wrong = json!({ key.name: { "no": "such" } });
                assert!(!validator.is_valid(&wrong), "{wrong}");
            }
            assert!(!validator.is_valid(&json!({ "burts": 1 })) && !validator.is_valid(&json!({})));
        }
    }
}
