//! Shapes of texts and numbers in requests: each type stands for a schema with bounds. A field names its shape in
//! `#[schema(value_type = …)]`, a member of a query in `#[param(value_type = …)]`.

use std::time::Duration;

use utoipa::openapi::schema::{AnyOfBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::config::schema;
use crate::config::schema::pattern::{duration, number, per_period, whole};
use crate::model::{bucket, limiter};
use crate::operate::bounds::{LONGEST, REASON_MOST};
use crate::store::dead::LONGEST_GLOB;
use crate::store::top::By;

/// The longest duration that a text can express: microseconds in 64 bits.
const EVER: Duration = Duration::from_micros(u64::MAX);

const MS: Duration = Duration::from_millis(1);

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn like(pattern: &str) -> ObjectBuilder {
    text().pattern(Some(whole(pattern)))
}

/// Define a shape: its name among the components, and its schema.
macro_rules! shape {
    ($(#[$about:meta])* $name:ident = $schema:expr) => {
        $(#[$about])*
        pub(in crate::http) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                RefOr::T(Schema::from($schema))
            }
        }

        impl ToSchema for $name {}
    };
}

shape!(
    /// The name of a bucket or a budget.
    Name = text()
        .min_length(Some(1))
        .max_length(Some(bucket::MAX_BYTES))
        .pattern(Some(r"^[^{}\u0000-\u001f\u007f-\u009f]+$"))
        .description(Some("A name of 1 to 200 bytes of UTF-8 without control characters and braces"))
        .examples(["sms:acme"])
);

shape!(
    /// A glob.
    Pattern = text()
        .min_length(Some(1))
        .max_length(Some(LONGEST_GLOB))
        .description(Some("A glob as in Redis KEYS, or a name"))
        .examples(["sms:*"])
);

shape!(
    /// A glob; without a character that makes it one it is a name, and must be one.
    NameOrGlob = AnyOfBuilder::new()
        .item(Ref::from_schema_name(Name::name()))
        .item(text().max_length(Some(LONGEST_GLOB)).pattern(Some(r"[*?\[\\]")))
        .description(Some("A glob as in Redis KEYS, or a name"))
        .examples(["sms:*"])
);

shape!(
    /// How a body is split.
    Split = text().enum_values(Some(["lines"]))
);

shape!(
    /// An order of buckets.
    Order = text().enum_values(Some(By::ALL.map(By::as_str)))
);

shape!(
    /// How long something is set for.
    Time = schema::time().description(Some("1ms to 366d, in us ms s m h d")).examples(["10m"])
);

shape!(
    /// A rate.
    Rate = schema::rate()
);

shape!(
    /// The rate of a limiter.
    LimiterRate = like(&per_period(limiter::MAX_COUNT.into(), MS, LONGEST, "us"))
        .description(Some("How many in how long: a count and a period of whole milliseconds, of a throttle whole seconds"))
        .examples(["5/60s"])
);

shape!(
    /// An entry of a stream.
    Entry = like(&format!("{0}-{0}", number(0, u64::MAX.into()))).examples(["1750000000000-0"])
);

shape!(
    /// The name of a job: an id in a stream, its identity outside of it, or the id that its producer gave it.
    JobId = like("[!-~]{1,217}").examples(["order-7"])
);

shape!(
    /// The id that a producer may give its job.
    OwnId = like("[!-~]{1,200}")
);

shape!(
    /// How long a job waits first: milliseconds, or with a unit.
    Delay = like(&format!("({}|{})", number(0, LONGEST.as_millis()), duration(Duration::ZERO, LONGEST)))
);

shape!(
    /// How long it may wait.
    Ttl = like(&format!("({}|{})", number(1, LONGEST.as_millis()), duration(MS, LONGEST)))
);

shape!(
    /// Why something is done.
    Reason = text().max_length(Some(REASON_MOST)).description(Some("At most 1,000 bytes"))
);

shape!(
    /// A moment, or how long ago it was.
    Moment = AnyOfBuilder::new()
        .item(
            like("(19[7-9][0-9]|[2-9][0-9]{3})-.*").format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))),
        )
        .item(like(&duration(Duration::ZERO, EVER)))
        .examples(["2026-05-01T12:00:00Z", "2h"])
);

/// The shapes that are components, to which parameters refer by name.
pub(super) fn all() -> Vec<(String, RefOr<Schema>)> {
    fn one<T: ToSchema>() -> (String, RefOr<Schema>) {
        (T::name().into_owned(), T::schema())
    }
    vec![
        one::<Name>(),
        one::<Pattern>(),
        one::<NameOrGlob>(),
        one::<Order>(),
        one::<Time>(),
        one::<Rate>(),
        one::<LimiterRate>(),
        one::<Entry>(),
        one::<JobId>(),
        one::<Reason>(),
        one::<Moment>(),
        one::<Split>(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{duration as durations, rate as rates};

    /// A function that tells whether a text is valid for a shape.
    fn matches<T: PartialSchema>() -> impl Fn(&str) -> bool {
        let schema = serde_json::to_value(T::schema()).expect("JSON");
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        move |text| validator.is_valid(&serde_json::json!(text))
    }

    #[test]
    fn a_time_and_a_rate_are_in_the_schema_what_they_are_to_the_parser() {
        let (time, is_rate) = (matches::<Time>(), matches::<Rate>());
        let mut numbers: Vec<u64> = (0..14).flat_map(|n| [10_u64.pow(n), 10_u64.pow(n) - 1]).collect();
        for unit_us in [1, 1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000] {
            let most = LONGEST.as_micros() as u64 / unit_us;
            numbers.extend([most - 1, most, most + 1, 1_000_u64.div_ceil(unit_us)]);
        }
        for n in numbers {
            for unit in ["us", "ms", "s", "m", "h", "d", "w", ""] {
                let text = format!("{n}{unit}");
                let is = durations::parse(&text).is_some_and(|time| (MS..=LONGEST).contains(&time));
                assert_eq!(time(&text), is, "{text}");
                let text = format!("1/{text}");
                assert_eq!(is_rate(&text), rates::Rate::parse(&text).is_ok(), "{text}");
            }
        }
        for count in [0, 1, 99, 49_999_999, 50_000_000, 50_000_001] {
            let text = format!("{count}/d");
            assert_eq!(is_rate(&text), rates::Rate::parse(&text).is_ok(), "{text}");
        }
        for text in ["5/s", "5/us", "5/", "/s", "5/1.5s", " 5/s"] {
            assert_eq!(is_rate(text), rates::Rate::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_name_is_in_the_schema_what_it_is_to_the_parser() {
        let is_name = matches::<Name>();
        for text in ["a", "sms:+41 79", "Zürich", "", "a\nb", "a\u{7f}", "{a}", "a}", "a\u{85}", "/", &"a".repeat(201)]
        {
            assert_eq!(is_name(text), bucket::BucketName::parse(text.as_bytes()).is_ok(), "{text:?}");
        }
    }
}
