//! Bodies of which a schema has to say more than a type does: which of their members belong together.

use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AllOfBuilder, AnyOfBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, schema::AdditionalProperties};
use utoipa::{PartialSchema, ToSchema};

use crate::http::{dead, mutations};

/// Which dead letters a change is about: nobody deletes all of them by leaving something out.
pub(in crate::http) struct Chosen;

/// A resume, or an opening: it holds from now on.
pub(in crate::http) struct GoOn;

/// A slow-down of a bucket, for a time, or its end.
pub(in crate::http) struct SlowBucket;

/// A slow-down of a budget, which names no other one.
pub(in crate::http) struct SlowBudget;

type Parts = Vec<(String, RefOr<Schema>)>;

/// An object that has this member, and not as null.
fn with(name: &str, member: impl Into<RefOr<Schema>>) -> ObjectBuilder {
    let object = ObjectBuilder::new().property(name, member).required(name);
    object.additional_properties(Some(AdditionalProperties::FreeForm(true)))
}

fn of_type(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(kind)
}

/// One value alone.
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

/// It is slowed down for a time, or goes on: not both, and one of them.
fn slow(words: RefOr<Schema>) -> RefOr<Schema> {
    let lasts = with("for", of_type(Type::String)).property("clear", only(false));
    let ends = with("clear", only(true)).property("for", of_type(Type::Null));
    let one = OneOfBuilder::new().item(lasts).item(ends);
    RefOr::T(AllOfBuilder::new().item(words).item(one).examples([json!({ "for": "30s" })]).into())
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
