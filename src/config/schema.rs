//! The JSON Schema of the configuration file, made from the tables of keys by which the file is read: for editors. The `OpenAPI` document
//! takes the keys of policies from here.
//!
//! What one key allows is said. What several keys say together, as that `ordered` needs `concurrency = 1`, only `dripd check` knows.

pub mod pattern;

use std::time::Duration;

use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type,
};

use super::http::May;
use super::keys::{self, Allowed, BUDGET_LIMITS, Key, LONGEST_CATCH_UP, MOST_GATES};
use super::server::Fsync;
use crate::model::duration::LONGEST;
use crate::model::expectation::Figure;
use crate::model::forward::End;
use crate::model::limiter::Kind;
use crate::model::node::Told;
use crate::model::partitioning::MAX_PARTITIONS;
use crate::model::quota::{self, Quota};
use crate::model::rate::{self, Rate};
use crate::model::route::Route;

/// The version of JSON Schema that the editors read.
const DRAFT: &str = "http://json-schema.org/draft-07/schema#";

/// The longest `ready_window`.
const LONGEST_WINDOW: Duration = Duration::from_secs(3_600);

const MS: Duration = Duration::from_millis(1);

/// A table of the file: its name, and its keys.
pub(super) type Section = (&'static str, &'static [&'static [Key]]);

/// The tables that stand once.
pub(super) const SECTIONS: [Section; 4] =
    [("redis", &[keys::REDIS]), ("http", &[keys::HTTP]), ("defaults", &[keys::POLICY]), ("limits", &[keys::LIMITS])];

/// The tables of which there may be any number, each under `[[name]]`.
pub(super) const ENTRIES: [Section; 4] = [
    ("bucket", &[keys::BUCKET, keys::POLICY]),
    ("budget", &[keys::BUDGET_MATCH, keys::BUDGET]),
    ("route", &[keys::ROUTE]),
    ("expect", &[keys::EXPECT]),
];

/// The schema of the file.
pub fn of_file() -> Value {
    let sections = SECTIONS.iter().map(|(name, keys)| (*name, object(keys)));
    let entries = ENTRIES.iter().map(|(name, keys)| (*name, list(&object(keys))));
    let mut properties: serde_json::Map<String, Value> =
        sections.chain(entries).map(|(name, schema)| (name.to_owned(), schema)).collect();
    properties["http"]["properties"]["token"] = list(&object(&[keys::HTTP_TOKEN]));
    // What is told limits by itself.
    let limits = BUDGET_LIMITS.iter().map(|name| match *name {
        "told" => json!({ "required": ["told"], "properties": { "told": { "not": { "const": Told::Off.as_str() } } } }),
        name => json!({ "required": [name] }),
    });
    properties["budget"]["items"]["anyOf"] = limits.collect();
    properties["route"]["items"]["anyOf"] = json!([{ "required": ["to"] }, { "required": ["ready_window"] }]);
    json!({
        "$schema": DRAFT,
        "title": "The configuration of dripd",
        "description": "docs/configuration.md explains every key. `dripd check` finds what no schema can.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

/// A table of the file with these keys, with their defaults.
fn object(tables: &[&[Key]]) -> Value {
    let keys = || tables.iter().copied().flatten();
    let mut schema = serde_json::to_value(Schema::from(table(keys()))).expect("JSON");
    for key in keys() {
        let property = &mut schema["properties"][key.name];
        if let Some(default) = key.default_value() {
            property["default"] = default;
        }
        let examples = key.examples();
        if !examples.is_empty() {
            property["examples"] = examples.into();
        }
    }
    let required: Vec<&str> = keys().filter(|key| key.is_required()).map(|key| key.name).collect();
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// An object with these keys and no others.
pub fn table<'a>(keys: impl IntoIterator<Item = &'a Key>) -> ObjectBuilder {
    let object = ObjectBuilder::new().additional_properties(Some(AdditionalProperties::FreeForm(false)));
    keys.into_iter().fold(object, |object, key| {
        let object = object.property(key.name, value(key));
        if key.is_required() { object.required(key.name) } else { object }
    })
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// Any text but the empty one.
fn some_text() -> ObjectBuilder {
    text().min_length(Some(1))
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

fn boolean() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Boolean)
}

/// A value, or a word that takes the value away.
fn or_word(schema: impl Into<RefOr<Schema>>, word: &str, about: &str) -> Schema {
    AnyOfBuilder::new().item(schema).item(one_word(&[word])).description(Some(about)).into()
}

/// A list of texts.
fn texts(one: ObjectBuilder, least: usize, about: &str) -> Schema {
    ArrayBuilder::new().items(RefOr::T(one.into())).min_items(Some(least)).description(Some(about)).into()
}

/// A rate.
pub fn rate() -> ObjectBuilder {
    like(&pattern::per_period(rate::MAX_COUNT.into(), MS, LONGEST, "ms"))
        .description(Some(Rate::HINT))
        .examples(["5/s"])
}

/// A time from a millisecond on.
pub fn time() -> ObjectBuilder {
    like(&pattern::duration(MS, LONGEST))
}

/// The schema of the values that a key takes.
pub fn value(key: &Key) -> Schema {
    let about = Some(key.about);
    match &key.allowed {
        Allowed::Number(least, most) => whole(*least, *most).description(about).into(),
        Allowed::Duration(least, most) => like(&pattern::duration(*least, *most)).description(about).into(),
        Allowed::Table(keys) => table(*keys).description(about).into(),
        Allowed::Words(hint) => words(key, hint),
    }
}

/// The schema of a key whose table describes it in a sentence. A key that is unknown here takes any value; a test
/// checks that there is none.
fn words(key: &Key, hint: &str) -> Schema {
    let about = Some(key.about);
    match key.name {
        "rate" => rate().description(about).into(),
        "job_rate" => or_word(rate(), "none", key.about),
        "ttl" => or_word(time(), "none", key.about),
        "cost_max" => or_word(whole(1, 100_000), "minute", key.about),
        "concurrency" => or_word(whole(1, 100_000), "none", key.about),
        "overflow" => one_word(&["reject", "drop-oldest"]).description(about).into(),
        "told" => one_word(&Told::ALL.map(Told::as_str)).description(about).into(),
        "catch_up" => like(&pattern::duration(Duration::ZERO, LONGEST_CATCH_UP)).description(about).into(),
        "ready_window" => or_word(like(&pattern::duration(MS, LONGEST_WINDOW)), "off", key.about),
        // Settings of a named bucket may not use `{1}`, which a schema cannot express.
        "within" => like(r"([^{}\u0000-\u001f\u007f-\u009f]|\{[1-9][0-9]{0,2}\})*").description(about).into(),
        "ordered" | "adaptive" => boolean().description(about).into(),
        "quota" => {
            let amount = pattern::per_period(quota::MAX_COUNT.into(), Duration::from_secs(1), LONGEST, "us");
            let one = || like(&format!("{amount}(@[+-]((0[0-9]|1[0-3]):[0-5][0-9]|14:00))?"));
            one_or_more(one, Quota::MOST_OF_ONE, key.about)
        }
        "admit" => one_or_more(gate, MOST_GATES, key.about),
        "route" => route().description(about).into(),
        "name" if hint == Route::HINT => route().description(about).into(),
        "name" => like(r"[^\u0000-\u001f\u007f-\u009f]{1,100}").description(about).into(),
        "may" => one_word(&May::ALL.map(May::as_str)).description(about).into(),
        "end" => one_word(&End::ALL.map(End::as_str)).description(about).into(),
        "to" | "set" | "member" | "notify" => like(r"[^\u0000-\u001f\u007f-\u009f]{1,500}").description(about).into(),
        "match" if hint == keys::BUDGET_MATCH_HINT => {
            like(r"[^{}\u0000-\u001f\u007f-\u009f]+").description(about).into()
        }
        "match" if !key.default.is_empty() => some_text().description(about).into(), // of a token
        "match" => text().description(about).into(),
        "assert" => like(&assertion()).description(about).into(),
        "listen" => {
            let port = pattern::number(0, u16::MAX.into());
            like(&format!(r"(|unix:/.*|(localhost|[0-9.]+|\[[0-9A-Fa-f:.%]+\]):0*{port})")).description(about).into()
        }
        "hosts" => texts(like(r"[A-Za-z0-9._:\[\]-]+"), 0, key.about),
        "url" => like("(|(redis|rediss|valkey|valkeys|unix|redis\\+unix)://.*)").description(about).into(),
        "cluster" | "nodes" => {
            let port = pattern::number(1, u16::MAX.into());
            texts(like(&format!(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):0*{port}")), 1, key.about)
        }
        "prefix" => like(keys::PREFIX_PATTERN).description(about).into(),
        "partitions" => {
            let powers = (0..).map(|n| 1_u8 << n).take_while(|n| *n <= MAX_PARTITIONS).take(7);
            ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some(powers)).description(about).into()
        }
        "partition_by" => whole(1, 8).description(about).into(),
        "port" => whole(1, u16::MAX.into()).description(about).into(),
        "fsync" => one_word(&Fsync::ALL.map(Fsync::as_str)).description(about).into(),
        "server_name" => like(r"([A-Za-z0-9._-]+|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)").description(about).into(),
        "user" | "password_file" | "data_dir" | "ca" | "cert" | "key" | "master" | "file" => {
            some_text().description(about).into()
        }
        _ => ObjectBuilder::new().schema_type(SchemaType::AnyValue).into(),
    }
}

fn route() -> ObjectBuilder {
    like("[A-Za-z0-9._-]{1,64}")
}

/// What `assert` says: a pattern or a budget, a figure, a comparison and a value.
fn assertion() -> String {
    let figures = Figure::ALL.map(|(name, _)| name.replace('.', r"\.")).join("|");
    format!(r"\s*(budget\s+)?\S+\s+({figures})\s+(<|<=|>|>=)\s+\S+\s*")
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
            gate = gate.property("aligned", boolean());
        }
        gate
    };
    Kind::ALL.into_iter().fold(OneOfBuilder::new(), |all, kind| all.item(one(kind))).into()
}
