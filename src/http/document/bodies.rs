//! Schemas of bodies whose members depend on one another, which a type cannot express.

use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AllOfBuilder, AnyOfBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, schema::AdditionalProperties};
use utoipa::{PartialSchema, ToSchema};

use crate::http::{dead, mutations};

/// A change of dead letters that says which ones it means: nobody deletes all of them by leaving something out.
pub(in crate::http) struct Chosen;

/// A resume or an opening, which lasts from now on and has no duration.
pub(in crate::http) struct GoOn;

/// A slow-down of a bucket, for a time, or its end.
pub(in crate::http) struct SlowBucket;

/// A slow-down of a budget, or its end; it names no other budget.
pub(in crate::http) struct SlowBudget;

/// How much more the other side of a bucket lets through, or that this is forgotten.
pub(in crate::http) struct ToldBucket;

/// The same of a budget; it names no other budget.
pub(in crate::http) struct ToldBudget;

type Parts = Vec<(String, RefOr<Schema>)>;

/// An object that must have this member.
fn with(name: &str, member: impl Into<RefOr<Schema>>) -> ObjectBuilder {
    let object = ObjectBuilder::new().property(name, member).required(name);
    object.additional_properties(Some(AdditionalProperties::FreeForm(true)))
}

fn of_type(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(kind)
}

/// The schema of a single value.
fn only(value: impl Into<Value>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).enum_values(Some([value.into()]))
}

impl PartialSchema for Chosen {
    fn schema() -> RefOr<Schema> {
        let texts = ["bucket", "reason", "id", "before"];
        let any = texts.iter().fold(AnyOfBuilder::new(), |any, name| any.item(with(name, of_type(Type::String))));
        let any = any.item(with("limit", of_type(Type::Integer)));
        let any = any.item(with("dry_run", only(true))).item(with("all", only(true)));
        let all = AllOfBuilder::new().item(Ref::from_schema_name(dead::DeadBody::name())).item(any);
        RefOr::T(all.examples([json!({ "bucket": "sms:*", "dry_run": true })]).into())
    }
}

impl ToSchema for Chosen {
    fn schemas(parts: &mut Parts) {
        parts.push((dead::DeadBody::name().into_owned(), dead::DeadBody::schema()));
        dead::DeadBody::schemas(parts);
    }
}

/// A schema of an object without one of its members.
fn without(mut schema: RefOr<Schema>, name: &str) -> RefOr<Schema> {
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        object.properties.remove(name);
    }
    schema
}

impl PartialSchema for GoOn {
    fn schema() -> RefOr<Schema> {
        without(mutations::PauseBody::schema(), "for")
    }
}

impl ToSchema for GoOn {
    fn schemas(parts: &mut Parts) {
        mutations::PauseBody::schemas(parts);
    }
}

/// A body that either slows down for a time or ends a slow-down: one of both, and not both.
fn slow(words: RefOr<Schema>) -> RefOr<Schema> {
    let lasts = with("for", of_type(Type::String)).property("clear", only(false));
    let ends = with("clear", only(true)).property("for", of_type(Type::Null));
    let one = OneOfBuilder::new().item(lasts).item(ends);
    RefOr::T(AllOfBuilder::new().item(words).item(one).examples([json!({ "for": "30s" })]).into())
}

/// A body that either reports a limit or forgets it: one of both, and not both.
fn told(words: RefOr<Schema>) -> RefOr<Schema> {
    let report = with("remaining", of_type(Type::Integer)).required("reset_ms").property("clear", only(false));
    let nothing = ["remaining", "reset_ms", "limit", "units"];
    let clear = nothing.iter().fold(with("clear", only(true)), |all, name| all.property(*name, of_type(Type::Null)));
    let one = OneOfBuilder::new().item(report).item(clear);
    let example = json!({ "remaining": 12, "reset_ms": 30_000, "limit": 100 });
    RefOr::T(AllOfBuilder::new().item(words).item(one).examples([example]).into())
}

impl PartialSchema for ToldBucket {
    fn schema() -> RefOr<Schema> {
        told(mutations::ToldBody::schema())
    }
}

impl PartialSchema for ToldBudget {
    fn schema() -> RefOr<Schema> {
        told(without(mutations::ToldBody::schema(), "in"))
    }
}

impl ToSchema for ToldBucket {
    fn schemas(parts: &mut Parts) {
        mutations::ToldBody::schemas(parts);
    }
}

impl ToSchema for ToldBudget {
    fn schemas(parts: &mut Parts) {
        mutations::ToldBody::schemas(parts);
    }
}

impl PartialSchema for SlowBucket {
    fn schema() -> RefOr<Schema> {
        slow(mutations::SlowBody::schema())
    }
}

impl PartialSchema for SlowBudget {
    fn schema() -> RefOr<Schema> {
        slow(without(mutations::SlowBody::schema(), "in"))
    }
}

impl ToSchema for SlowBucket {
    fn schemas(parts: &mut Parts) {
        mutations::SlowBody::schemas(parts);
    }
}

impl ToSchema for SlowBudget {
    fn schemas(parts: &mut Parts) {
        mutations::SlowBody::schemas(parts);
    }
}
