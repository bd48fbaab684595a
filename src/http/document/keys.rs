//! Schemas of the keys of a policy, made from the tables by which the parser of the configuration reads.

use std::time::Duration;

use serde_json::json;
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, Type,
};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::pattern;
use super::shapes::{Rate, Time, rate};
use crate::config::keys::{Allowed, BUDGET, Key, LONGEST_CATCH_UP, MOST_GATES, POLICY};
use crate::model::limiter::Kind;
use crate::model::node::Told;
use crate::model::quota::{self, Quota};
use crate::operate::bounds::LONGEST;

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

/// An object with these keys and no others.
fn table(keys: &[Key]) -> ObjectBuilder {
    let object = ObjectBuilder::new().additional_properties(Some(AdditionalProperties::FreeForm(false)));
    keys.iter().fold(object, |object, key| object.property(key.name, value(key)))
}

/// The value of one of these keys; the path says which key.
fn any_of(keys: &[Key]) -> RefOr<Schema> {
    let any = keys.iter().fold(AnyOfBuilder::new(), |any, key| any.item(value(key)));
    RefOr::T(any.description(Some("The value of the key that the path names")).examples(["5/s"]).into())
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn like(pattern: &str) -> ObjectBuilder {
    text().pattern(Some(pattern::whole(pattern)))
}

fn whole(least: u64, most: u64) -> ObjectBuilder {
    let (least, most) = (i64::try_from(least).unwrap_or(i64::MAX), i64::try_from(most).unwrap_or(i64::MAX));
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(most))
}

fn one_word(words: &[&str]) -> ObjectBuilder {
    text().enum_values(Some(words.iter().copied()))
}

/// A value, or the word `none`, which takes the value away.
fn or_none(schema: impl Into<RefOr<Schema>>, about: &str) -> Schema {
    AnyOfBuilder::new().item(schema).item(one_word(&["none"])).description(Some(about)).into()
}

/// The schema of the values that a key takes.
fn value(key: &Key) -> Schema {
    let about = Some(key.about);
    match &key.allowed {
        Allowed::Number(least, most) => whole(*least, *most).description(about).into(),
        Allowed::Duration(least, most) => like(&pattern::duration(*least, *most)).description(about).into(),
        Allowed::Table(keys) => table(keys).description(about).into(),
        Allowed::Words(_) => words(key),
    }
}

/// The schema of a key whose table describes it in a sentence. A key that is unknown here takes any value; a test
/// checks that there is none.
fn words(key: &Key) -> Schema {
    let about = Some(key.about);
    match key.name {
        "rate" => rate().description(about).into(),
        "job_rate" => or_none(Ref::from_schema_name(Rate::name()), key.about),
        "ttl" => or_none(Ref::from_schema_name(Time::name()), key.about),
        "concurrency" => or_none(whole(1, 100_000), key.about),
        "overflow" => one_word(&["reject", "drop-oldest"]).description(about).into(),
        "told" => one_word(&Told::ALL.map(Told::as_str)).description(about).into(),
        "route" => like("[A-Za-z0-9._-]{1,64}").description(about).into(),
        "catch_up" => like(&pattern::duration(Duration::ZERO, LONGEST_CATCH_UP)).description(about).into(),
        // Settings of a named bucket may not use `{1}`, which a schema cannot express.
        "within" => like(r"([^{}\u0000-\u001f\u007f-\u009f]|\{[1-9][0-9]{0,2}\})*").description(about).into(),
        "ordered" | "adaptive" => ObjectBuilder::new().schema_type(Type::Boolean).description(about).into(),
        "quota" => {
            let amount = pattern::per_period(quota::MAX_COUNT.into(), Duration::from_secs(1), LONGEST, "us");
            let one = || like(&format!("{amount}(@[+-]((0[0-9]|1[0-3]):[0-5][0-9]|14:00))?"));
            one_or_more(one, Quota::MOST_OF_ONE, key.about)
        }
        "admit" => one_or_more(gate, MOST_GATES, key.about),
        _ => any(),
    }
}

fn any() -> Schema {
    ObjectBuilder::new().schema_type(utoipa::openapi::schema::SchemaType::AnyValue).into()
}

/// One value, or a list of at most `most`.
fn one_or_more<T: Into<Schema>>(one: impl Fn() -> T, most: usize, about: &str) -> Schema {
    let list = ArrayBuilder::new().items(RefOr::T(one().into())).max_items(Some(most));
    AnyOfBuilder::new().item(one().into()).item(list).description(Some(about)).into()
}

/// A limiter in `admit`: each kind has keys of its own.
fn gate() -> Schema {
    let one = |kind: Kind| {
        let (counts, name) = (kind.counts(), if kind.size_name().is_some() { "count" } else { "limit" });
        let mut gate = ObjectBuilder::new()
            .additional_properties(Some(AdditionalProperties::FreeForm(false)))
            .property("limiter", one_word(&[kind.as_str()]))
            .required("limiter")
            .property(name, whole((*counts.start()).into(), (*counts.end()).into()))
            .required(name)
            .property("period", like(&pattern::duration(kind.unit(), LONGEST)))
            .required("period");
        if let Some(size) = kind.size_name() {
            let sizes = kind.sizes();
            gate = gate.property(size, whole((*sizes.start()).into(), (*sizes.end()).into())).required(size);
        }
        if kind == Kind::FixedWindow {
            gate = gate.property("aligned", ObjectBuilder::new().schema_type(Type::Boolean));
        }
        gate
    };
    Kind::ALL.into_iter().fold(OneOfBuilder::new(), |all, kind| all.item(one(kind))).into()
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
