//! The table of all requests, of which both the router and `/openapi.json` are made.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, patch, post};
use axum::{Extension, Router, middleware};
use utoipa::openapi::{HttpMethod, Required};

use super::auth::Exposure;
use super::document::bodies::{Chosen, GoOn, SlowBucket, SlowBudget, ToldBucket, ToldBudget};
use super::document::keys::{BucketKeys, BucketValue, BudgetKeys, BudgetValue};
use super::document::{Document, document};
use super::memory::SMALL;
use super::resource_path::SETTINGS;
use super::route::{Answer, Body, Handler, Route, Typed};
use super::state::AppState;
use super::{buckets, budgets, dead, events, fallback, health, jobs, metrics, mutations, pages, push, queries, submit};
use crate::explain::{BudgetSaid, WhatIfSaid};
use crate::operate::changed::Changed;
use crate::operate::dead::{DeadChanged, DeadCounted};
use crate::operate::limit::LimiterVerdict;
use crate::operate::purge::PurgeOptions;
use crate::operate::settings::SetValue;
use crate::operate::slow::Slowed;
use crate::operate::told::TakenReport;
use crate::store::purge::Purged;
use crate::store::routes::RouteStatus;
use crate::store::status::Status;

const MAY_WAIT: &str = "What was changed, with each key before and after";

/// The routes that change buckets, or budgets: the one that the path names, or all that a glob matches.
fn changes(kind: &str, one: &str, verbs: &[&str]) -> Vec<Route> {
    let (mut routes, is_budget) = (Vec::new(), one == "budget");
    for (base, of, is_glob) in [
        (format!("/v1/{kind}/{{{one}}}"), format!("a {one}"), false),
        (format!("/v1/{kind}"), format!("all {kind} that a glob matches"), true),
    ] {
        let settings = format!("{base}/{SETTINGS}");
        let with = |route: Route| {
            // An unset, a resume and an opening take effect now, and have no duration.
            let ends =
                route.method == HttpMethod::Delete || ["/resume", "/open"].iter().any(|end| route.path.ends_with(end));
            let mut route = route.query::<mutations::MutationQuery>();
            // `match` is required where the path names nothing, and not allowed where it does.
            route.query.retain(|parameter| is_glob || parameter.name != "match");
            route.query.retain(|parameter| !ends || parameter.name != "for");
            for parameter in route.query.iter_mut().filter(|parameter| parameter.name == "match") {
                parameter.required = Required::True;
            }
            route
        };
        routes.push(with(
            Route::new(
                HttpMethod::Patch,
                &settings,
                format!("Set keys of the policy of {of}"),
                patch(mutations::set),
                Answer::of::<Changed>(MAY_WAIT),
            )
            .body(if is_budget { Body::of::<BudgetKeys>() } else { Body::of::<BucketKeys>() }),
        ));
        routes.push(with(
            Route::new(
                HttpMethod::Patch,
                format!("{settings}/{{key}}"),
                format!("Set a key of {of}"),
                patch(mutations::set),
                Answer::of::<Changed>(MAY_WAIT),
            )
            .body(if is_budget { Body::of::<BudgetValue>() } else { Body::of::<BucketValue>() }),
        ));
        let back = format!("Take what is set of {of} back to the file");
        let unset = |path: String, says: String| {
            with(Route::new(HttpMethod::Delete, path, says, delete(mutations::unset), Answer::of::<Changed>(MAY_WAIT)))
        };
        routes.push(unset(settings.clone(), back));
        routes.push(unset(format!("{settings}/{{key}}"), format!("Take a key of {of} back to the file")));
        for verb in verbs {
            let says = match *verb {
                "pause" => format!("Let nothing leave {of}"),
                "resume" => format!("Let {of} go on"),
                "close" => format!("Take nothing into {of}"),
                _ => format!("Take jobs into {of} again"),
            };
            let route = Route::new(
                HttpMethod::Post,
                format!("{base}/{verb}"),
                says,
                post(mutations::pause),
                Answer::of::<Changed>(MAY_WAIT),
            );
            let stops = matches!(*verb, "pause" | "close");
            routes.push(with(route.body(if stops {
                Body::if_any::<mutations::PauseBody>()
            } else {
                Body::if_any::<GoOn>()
            })));
        }
        if !is_glob {
            let says = format!("Slow down {of} for a while, or end that");
            let answer = Answer::of::<Slowed>("When it goes on");
            routes.push(
                Route::new(HttpMethod::Post, format!("{base}/slow"), says, post(mutations::slow), answer)
                    .body(if is_budget { Body::of::<SlowBudget>() } else { Body::of::<SlowBucket>() }),
            );
            let says = format!("Say how much more the other side of {of} lets through, or forget that");
            let answer = Answer::of::<TakenReport>("Whether it counts");
            routes.push(
                Route::new(HttpMethod::Post, format!("{base}/told"), says, post(mutations::told), answer)
                    .body(if is_budget { Body::of::<ToldBudget>() } else { Body::of::<ToldBucket>() }),
            );
        }
    }
    routes
}

/// The answer of a change of dead letters; with `dry_run`, the counts.
fn dead_changed() -> Answer {
    Answer::Json(Typed::of::<DeadChanged>().or::<DeadCounted>(), "How many; with `dry_run`, how many there would be")
}

/// All routes of the document.
fn all() -> Vec<Route> {
    let get_of = |path: &str, says: &str, handler: Handler, answer: Answer| {
        Route::new(HttpMethod::Get, path, says, handler, answer)
    };
    let mut routes = vec![
        Route {
            answers: vec![
                (202, Answer::Json(Typed::of::<push::Accepted>().or::<submit::SubmittedJob>(), "The job went in; of one with options more is told")),
                (200, Answer::Json(Typed::of::<push::SomeAccepted>().or::<submit::SubmittedJob>(), "How many of the lines went in; or this `Drip-Id` was accepted before, and nothing was changed")),
            ],
            ..Route::new(
                HttpMethod::Post,
                "/v1/buckets/{bucket}/jobs",
                "Push a job: the body, as it is; or each of its lines is one. It is never repeated by the server: after a 504 it may have gone in",
                post(push::push),
                Answer::Text,
            )
        }
        .query::<push::PushQuery>()
        .headers(submit::parameters())
        .body(Body::Job)
        .problems(&[415, 429]),
        Route::new(HttpMethod::Get, "/v1/buckets/{bucket}/jobs/{id}", "How things stand with a job that was pushed with an id", get(submit::find), Answer::of::<submit::FoundJob>("How it stands"))
            .problems(&[404]),
        Route::new(HttpMethod::Delete, "/v1/buckets/{bucket}/jobs/{id}", "Have a job dropped when its turn comes", delete(submit::cancel), Answer::of::<submit::CancelledJob>("It will be dropped"))
            .problems(&[404, 409]),
        get_of("/v1/buckets", "The first buckets by an order, as the last walk found them", get(buckets::top), Answer::of::<buckets::TopBuckets>("The rows, and how old they are"))
            .query::<buckets::TopQuery>(),
        get_of("/v1/buckets/{bucket}", "How a bucket stands, and why it waits", get(buckets::bucket), Answer::of::<buckets::OneBucket>("How it stands, and why")),
        get_of("/v1/buckets/{bucket}/jobs", "The first bytes of the jobs that leave a bucket next", get(jobs::waiting), Answer::of::<jobs::WaitingJobs>("The jobs, the next one first"))
            .query::<jobs::WaitingJobsQuery>(),
        get_of("/v1/buckets/{bucket}/drips", "The last dispatches of a bucket: when each job was due, and when it left. They are remembered for half a minute after each request", get(jobs::drips), Answer::of::<jobs::LastDrips>("When each was due, and when it left")),
        get_of("/v1/budgets", "The budgets for whose shares most wait, and those that the configuration names, as they stand now", get(budgets::all), Answer::of::<budgets::Budgets>("The rows")),
        get_of("/v1/budgets/{budget}", "What a budget allows, what waits for it, what of it is used", get(budgets::one), Answer::of::<BudgetSaid>("As `dripd explain --budget --json`")).problems(&[404]),
        Route::new(HttpMethod::Post, "/v1/buckets/{bucket}/purge", "Throw away what waits in a bucket", post(mutations::purge), Answer::of::<Purged>("How many there were"))
            .body(Body::if_any::<PurgeOptions>()),
        get_of("/v1/dead", "Dead letters, the oldest first", get(dead::list), Answer::of::<dead::DeadLetters>("The letters")).query::<dead::DeadListQuery>(),
        Route::new(HttpMethod::Post, "/v1/dead/retry", "Put dead letters back through their buckets", post(dead::retry), dead_changed())
            .body(Body::of::<Chosen>()),
        Route::new(HttpMethod::Post, "/v1/dead/drop", "Delete dead letters for good", post(dead::drop_letters), dead_changed())
            .body(Body::of::<Chosen>()),
        Route::new(
            HttpMethod::Get,
            "/v1/events",
            "What is going on, as it happens: `history` at first, then `totals` once a second, `changes` and `redis` as they come",
            get(events::events),
            Answer::Kind("text/event-stream", "Events, each with an object or a list"),
        ),
        Route::new(HttpMethod::Get, "/", "The dashboard", get(pages::page), Answer::Kind("text/html", "A page")),
        Route::new(HttpMethod::Get, "/assets/{file}", "What belongs to the dashboard", get(pages::asset), Answer::Kind("*/*", "A file"))
            .problems(&[404]),
        get_of("/v1/status", "How things stand", get(queries::status), Answer::of::<Status>("As `dripd status --json`")),
        get_of(
            "/v1/routes",
            "How the routes stand: what no worker has taken yet, how old that is, how fast they take, and which buckets are held",
            get(queries::routes),
            Answer::Json(Typed::list_of::<RouteStatus>(), "As `routes` of `dripd status --json`"),
        ),
        get_of("/v1/settings", "What is set at run time", get(queries::all_settings), Answer::Json(Typed::list_of::<SetValue>(), "As `dripd settings --json`")).query::<queries::SettingsQuery>(),
        Route::new(HttpMethod::Post, "/v1/what-if", "What a change or a push would do; it changes nothing", post(queries::what_if), Answer::of::<WhatIfSaid>("As `dripd what-if --json`"))
            .body(Body::of::<queries::WhatIfBody>()),
        Route::new(HttpMethod::Post, "/v1/limit/{limiter}/{key}", "Ask a limiter at a key, and charge it if it allows", post(queries::limit), Answer::of::<LimiterVerdict>("The verdict"))
            .body(Body::of::<queries::LimitBody>())
            .problems(&[404, 429]),
        Route::new(HttpMethod::Get, "/healthz", "Whether the loops of this daemon turn", get(health::healthz), Answer::Text).problems(&[503]),
        Route::new(HttpMethod::Get, "/readyz", "Whether this daemon serves its Redis, and that takes writes", get(health::readyz), Answer::Text).problems(&[503]),
        Route::new(HttpMethod::Get, "/metrics", "What is measured, for Prometheus", get(metrics::all), Answer::Text),
        Route::new(HttpMethod::Get, "/metrics/buckets", "The same of the buckets that come first, or of one", get(metrics::buckets), Answer::Text)
            .query::<metrics::MetricsQuery>(),
        get_of("/openapi.json", "This document", get(document), Answer::Any("OpenAPI 3.1")),
    ];
    routes.extend(changes("buckets", "bucket", &["pause", "resume", "close", "open"]));
    routes.extend(changes("budgets", "budget", &["pause", "resume"]));
    // A bucket or a budget may have the name of a verb. At these paths there are other methods, so reading needs a
    // route of its own.
    for word in ["pause", "resume", "close", "open", SETTINGS] {
        let says = format!("How the bucket called {word} stands, and why it waits");
        let answer = Answer::of::<buckets::OneBucket>("How it stands, and why");
        routes.push(Route::new(HttpMethod::Get, format!("/v1/buckets/{word}"), says, get(buckets::bucket), answer));
    }
    for word in ["pause", "resume", SETTINGS] {
        let says = format!("What the budget called {word} allows");
        let answer = Answer::of::<BudgetSaid>("As `dripd explain --budget --json`");
        let route = Route::new(HttpMethod::Get, format!("/v1/budgets/{word}"), says, get(budgets::one), answer);
        routes.push(route.problems(&[404]));
    }
    routes
}

/// The router: all routes, and the layers around every answer.
pub(super) fn router(state: &Arc<AppState>) -> Router {
    let of_table = all().into_iter().map(|route| (route.path, route.handler));
    let of_words = names_like_words().into_iter().map(|(_, path, handler)| (path, handler));
    let router = of_table.chain(of_words).fold(Router::new(), |router, (path, handler)| router.route(&path, handler));
    router
        .fallback(fallback::not_found)
        .method_not_allowed_fallback(fallback::method_not_allowed)
        .layer(Extension(Arc::new(Document::of(all))))
        .layer(middleware::from_fn_with_state(Arc::clone(state), authenticate))
        .with_state(Arc::clone(state))
}

/// What a request that asks something takes of the memory, before it is known how long its answer is.
const READS: usize = 64 * 1_024;

/// Find the caller, before anything else of a request is examined, and take room for what follows.
async fn authenticate(State(state): State<Arc<AppState>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let exposure = match path {
        _ if pages::is_page(path) => Exposure::Page,
        _ if health::is_health(path) => Exposure::Health,
        _ => Exposure::Private,
    };
    let caller = match state.access().authenticate(&request, exposure) {
        Ok(caller) => caller,
        Err(problem) => return problem.into_response(),
    };
    // Health and the files of the dashboard need no memory: they are answered whatever others hold.
    if exposure != Exposure::Private {
        return next.run(request).await;
    }
    let reads = request.method().is_safe();
    let room = match state.memory.room(if reads { READS } else { SMALL }).await {
        Ok(room) => room,
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(Arc::clone(&room));
    let mut answer = room.keep(next.run(request).await, !reads).await;
    // An answer is about this moment, and may show jobs.
    answer.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

/// The routes of buckets and budgets that have the name of a word of the paths: `/v1/buckets/settings/jobs` takes jobs
/// for the one called `settings`. They are not in the document, where such a name is like all others.
fn names_like_words() -> Vec<(HttpMethod, String, Handler)> {
    let mut routes: Vec<(HttpMethod, String, Handler)> = Vec::new();
    let mut add = |method, path: String, handler: Handler| routes.push((method, path, handler));
    for (kind, verbs) in [("buckets", &["pause", "resume", "close", "open"][..]), ("budgets", &["pause", "resume"])] {
        let named = format!("/v1/{kind}/{SETTINGS}");
        for verb in verbs {
            add(HttpMethod::Post, format!("{named}/{verb}"), post(mutations::pause));
        }
        add(HttpMethod::Post, format!("{named}/slow"), post(mutations::slow));
        add(HttpMethod::Post, format!("{named}/told"), post(mutations::told));
        // `slow` and `told` are names of keys as well, here of all that a glob matches.
        for key in ["slow", "told"] {
            add(HttpMethod::Patch, format!("{named}/{key}"), patch(mutations::set));
            add(HttpMethod::Delete, format!("{named}/{key}"), delete(mutations::unset));
        }
        for path in [format!("{named}/{SETTINGS}"), format!("{named}/{SETTINGS}/{{key}}")] {
            add(HttpMethod::Patch, path.clone(), patch(mutations::set));
            add(HttpMethod::Delete, path, delete(mutations::unset));
        }
    }
    add(HttpMethod::Post, format!("/v1/buckets/{SETTINGS}/jobs"), post(push::push));
    add(HttpMethod::Get, format!("/v1/buckets/{SETTINGS}/jobs"), get(jobs::waiting));
    add(HttpMethod::Get, format!("/v1/buckets/{SETTINGS}/drips"), get(jobs::drips));
    add(HttpMethod::Get, format!("/v1/buckets/{SETTINGS}/jobs/{{id}}"), get(submit::find));
    add(HttpMethod::Delete, format!("/v1/buckets/{SETTINGS}/jobs/{{id}}"), delete(submit::cancel));
    add(HttpMethod::Post, format!("/v1/buckets/{SETTINGS}/purge"), post(mutations::purge));
    routes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::http::document::openapi;

    /// Whether a documented path, with names in braces, stands for this path.
    fn is_one_of(path: &str, documented: &str) -> bool {
        let (parts, of): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), documented.split('/').collect());
        parts.len() == of.len() && parts.iter().zip(of).all(|(part, of)| *part == of || of.starts_with('{'))
    }

    #[test]
    fn the_push_says_which_headers_it_takes_and_what_it_answers_to_them() {
        let document = serde_json::to_value(openapi(all())).expect("JSON");
        let push = &document["paths"]["/v1/buckets/{bucket}/jobs"]["post"];
        let parameters = push["parameters"].as_array().expect("a list").iter();
        let headers: Vec<_> = parameters.filter(|one| one["in"] == "header").map(|one| &one["name"]).collect();
        assert_eq!(headers, ["Drip-Id", "Drip-Replace", "Drip-Delay", "Drip-Ttl", "Drip-Cost", "traceparent"]);
        for status in ["200", "202"] {
            let schema = &push["responses"][status]["content"]["application/json"]["schema"]["anyOf"][1];
            assert_eq!(schema["$ref"], "#/components/schemas/SubmittedJob", "{status}");
        }
        assert!(push["responses"]["429"]["description"].as_str().is_some_and(|says| says.contains("`late`")));
    }

    /// Collect every `$ref` in a value.
    fn look<'a>(of: &'a Value, refs: &mut BTreeSet<&'a str>) {
        if let Some(to) = of.get("$ref").and_then(Value::as_str) {
            refs.insert(to.strip_prefix("#/components/schemas/").expect("a component"));
        }
        match of {
            Value::Object(all) => all.values().for_each(|one| look(one, refs)),
            Value::Array(all) => all.iter().for_each(|one| look(one, refs)),
            _ => {}
        }
    }

    #[test]
    fn every_schema_that_is_named_is_there_and_no_two_have_one_name() {
        let document = serde_json::to_value(openapi(all())).expect("JSON");
        let mut refs = BTreeSet::new();
        look(&document, &mut refs);
        let components = document["components"]["schemas"].as_object().expect("schemas");
        let there: BTreeSet<&str> = components.keys().map(String::as_str).collect();
        assert_eq!(refs.difference(&there).collect::<Vec<_>>(), [&""; 0]);
        assert!(refs.len() > 70, "{refs:?}");
        for route in all() {
            for (name, schema) in route.types().flat_map(Typed::schemas) {
                assert_eq!(serde_json::to_value(&schema).expect("JSON"), components[&name], "{name} of {}", route.path);
            }
        }
    }

    #[test]
    fn every_route_is_in_the_document_and_answers_with_its_method() {
        let document = serde_json::to_value(openapi(all())).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let method = |method: &HttpMethod| serde_json::to_value(method).expect("a word");
        let has = |of: &HttpMethod, path: &str| {
            let mut found = paths.iter().filter(|(documented, _)| is_one_of(path, documented));
            found.any(|(_, item)| !item[method(of).as_str().expect("a word")].is_null())
        };
        let table = all();
        assert!(table.len() > 40);
        for route in table {
            assert!(!paths[&route.path][method(&route.method).as_str().expect("a word")].is_null(), "{}", route.path);
        }
        for (of, path, _) in names_like_words() {
            assert!(has(&of, &path), "{path}");
        }
        assert!(!has(&HttpMethod::Post, "/v1/status") && !has(&HttpMethod::Get, "/v1/no/such/path"));
        let mut ids: Vec<&str> = paths
            .values()
            .flat_map(|item| item.as_object().expect("methods").values())
            .filter_map(|of| of["operationId"].as_str())
            .collect();
        let many = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), many, "each has an id of its own");
    }
}
