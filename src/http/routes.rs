//! The requests that the door answers: one table, of which both the router and `/openapi.json` are made.

use std::sync::Arc;

use axum::routing::{MethodRouter, delete, get, patch, post};
use axum::{Router, middleware};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::schema::{AnyOfBuilder, ArrayBuilder, Schema};
use utoipa::openapi::{HttpMethod, Ref, RefOr, Required};
use utoipa::{IntoParams, ToSchema};

use super::at::SETTINGS;
use super::changed::{Changed, Purged, Slowed};
use super::document::document;
use super::document::keys::{BucketKeys, BucketValue, BudgetKeys, BudgetValue};
use super::document::words::{Chosen, GoOn, SlowBucket, SlowBudget};
use super::{Door, act, ask, buckets, budgets, dead, events, health, jobs, metrics, pages, push, submit, who};
use crate::explain::{BudgetSaid, WhatIfSaid};
use crate::operate::{self, limit, settings};
use crate::store::routes::RouteStatus;
use crate::store::status::Status;

type Handler = MethodRouter<Arc<Door>>;

/// A type as the document knows it: by its name, with all that it is made of.
pub(super) struct Typed {
    pub(super) schema: Box<RefOr<Schema>>,
    /// The same among the components, and what it is made of.
    pub(super) parts: Vec<(String, RefOr<Schema>)>,
}

impl Typed {
    fn of<T: ToSchema>() -> Self {
        let mut parts = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut parts);
        Self { schema: Box::new(Ref::from_schema_name(T::name()).into()), parts }
    }

    /// A list of them.
    fn list_of<T: ToSchema>() -> Self {
        let Self { schema, parts } = Self::of::<T>();
        Self { schema: RefOr::T(ArrayBuilder::new().items(*schema).build().into()).into(), parts }
    }

    /// One or the other.
    fn or<T: ToSchema>(self) -> Self {
        let other = Self::of::<T>();
        let any = AnyOfBuilder::new().item(*self.schema).item(*other.schema);
        Self {
            schema: Box::new(RefOr::T(any.build().into())),
            parts: self.parts.into_iter().chain(other.parts).collect(),
        }
    }
}

/// What a body is.
pub(super) enum Body {
    None,
    /// Any bytes.
    Job,
    /// JSON; it may be left out where that means an empty object that is allowed.
    Words {
        words: Typed,
        required: bool,
    },
}

impl Body {
    /// JSON that must be there.
    fn of<T: ToSchema>() -> Self {
        Self::Words { words: Typed::of::<T>(), required: true }
    }

    /// JSON that may be left out.
    fn if_any<T: ToSchema>() -> Self {
        Self::Words { words: Typed::of::<T>(), required: false }
    }
}

/// What an answer that is a success is.
pub(super) enum Answer {
    Text,
    /// Something else, of this media type.
    Kind(&'static str, &'static str),
    /// JSON, and what it is about.
    Json(Typed, &'static str),
    /// JSON that has a schema of its own elsewhere.
    Any(&'static str),
}

impl Answer {
    fn of<T: ToSchema>(about: &'static str) -> Self {
        Self::Json(Typed::of::<T>(), about)
    }
}

/// A request.
pub(super) struct Route {
    pub(super) method: HttpMethod,
    pub(super) path: String,
    pub(super) says: String,
    handler: Handler,
    /// What it takes in the query, and in headers of its own.
    pub(super) query: Vec<Parameter>,
    pub(super) body: Body,
    pub(super) answers: Vec<(u16, Answer)>,
    /// Other answers than those that any request may get.
    pub(super) problems: &'static [u16],
}

impl Route {
    fn new(
        method: HttpMethod,
        path: impl Into<String>,
        says: impl Into<String>,
        handler: Handler,
        answer: Answer,
    ) -> Self {
        let (path, says, answers) = (path.into(), says.into(), vec![(200, answer)]);
        Self { method, path, says, handler, query: Vec::new(), body: Body::None, answers, problems: &[] }
    }

    fn query<T: IntoParams>(mut self) -> Self {
        self.query = T::into_params(|| Some(ParameterIn::Query));
        self
    }

    fn headers(mut self, headers: impl IntoIterator<Item = Parameter>) -> Self {
        self.query.extend(headers);
        self
    }

    fn body(self, body: Body) -> Self {
        Self { body, ..self }
    }

    fn problems(self, problems: &'static [u16]) -> Self {
        Self { problems, ..self }
    }
}

const MAY_WAIT: &str = "What was changed, with each key before and after";

/// The requests about buckets, or about budgets, that change something: about the one that is named, or those that a glob matches.
fn changes(kind: &str, one: &str, verbs: &[&str]) -> Vec<Route> {
    let (mut routes, is_budget) = (Vec::new(), one == "budget");
    for (base, of, is_glob) in [
        (format!("/v1/{kind}/{{{one}}}"), format!("a {one}"), false),
        (format!("/v1/{kind}"), format!("all {kind} that a glob matches"), true),
    ] {
        let settings = format!("{base}/{SETTINGS}");
        let with = |route: Route| {
            // What is taken back, or goes on, does so from now on.
            let ends =
                route.method == HttpMethod::Delete || ["/resume", "/open"].iter().any(|end| route.path.ends_with(end));
            let mut route = route.query::<act::Words>();
            // A glob must be given where the path names nothing, and must not where it does.
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
                patch(act::set_route),
                Answer::of::<Changed>(MAY_WAIT),
            )
            .body(if is_budget { Body::of::<BudgetKeys>() } else { Body::of::<BucketKeys>() }),
        ));
        routes.push(with(
            Route::new(
                HttpMethod::Patch,
                format!("{settings}/{{key}}"),
                format!("Set a key of {of}"),
                patch(act::set_route),
                Answer::of::<Changed>(MAY_WAIT),
            )
            .body(if is_budget { Body::of::<BudgetValue>() } else { Body::of::<BucketValue>() }),
        ));
        let back = format!("Take what is set of {of} back to the file");
        let unset = |path: String, says: String| {
            with(Route::new(HttpMethod::Delete, path, says, delete(act::unset_route), Answer::of::<Changed>(MAY_WAIT)))
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
                post(act::stop_route),
                Answer::of::<Changed>(MAY_WAIT),
            );
            let stops = matches!(*verb, "pause" | "close");
            routes.push(with(route.body(if stops { Body::if_any::<act::Stop>() } else { Body::if_any::<GoOn>() })));
        }
        if !is_glob {
            let says = format!("Slow down {of} for a while, or end that");
            let answer = Answer::of::<Slowed>("When it goes on");
            routes.push(
                Route::new(HttpMethod::Post, format!("{base}/slow"), says, post(act::slow_route), answer)
                    .body(if is_budget { Body::of::<SlowBudget>() } else { Body::of::<SlowBucket>() }),
            );
        }
    }
    routes
}

/// What was done with dead letters, or, with `dry_run`, would be.
fn dead_changed() -> Answer {
    Answer::Json(
        Typed::of::<operate::dead::Said>().or::<dead::DeadCounted>(),
        "How many; with `dry_run`, how many there would be",
    )
}

/// All requests.
pub(super) fn all() -> Vec<Route> {
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
                "Push a job: the body, as it is; or each of its lines is one. It is never repeated by the door: after a 504 it may have gone in",
                post(push::push),
                Answer::Text,
            )
        }
        .query::<push::How>()
        .headers(submit::parameters())
        .body(Body::Job)
        .problems(&[415, 429]),
        Route::new(HttpMethod::Get, "/v1/buckets/{bucket}/jobs/{id}", "How things stand with a job that was pushed with an id", get(submit::find), Answer::of::<submit::FoundJob>("How it stands"))
            .problems(&[404]),
        Route::new(HttpMethod::Delete, "/v1/buckets/{bucket}/jobs/{id}", "Have a job dropped when its turn comes", delete(submit::cancel), Answer::of::<submit::CancelledJob>("It will be dropped"))
            .problems(&[404, 409]),
        get_of("/v1/buckets", "The first buckets by an order, as the last walk found them", get(buckets::top), Answer::of::<buckets::TopBuckets>("The rows, and how old they are"))
            .query::<buckets::Which>(),
        get_of("/v1/buckets/{bucket}", "How a bucket stands, and why it waits", get(buckets::bucket), Answer::of::<buckets::OneBucket>("How it stands, and why")),
        get_of("/v1/buckets/{bucket}/jobs", "The first bytes of the jobs that leave a bucket next", get(jobs::waiting), Answer::of::<jobs::WaitingJobs>("The jobs, the next one first"))
            .query::<jobs::HowMany>(),
        get_of("/v1/buckets/{bucket}/drips", "The last dispatches of a bucket: when each job was due, and when it left. They are remembered for half a minute after each request", get(jobs::drips), Answer::of::<jobs::LastDrips>("When each was due, and when it left")),
        get_of("/v1/budgets", "The budgets for whose shares most wait, and those that the configuration names, as they stand now", get(budgets::all), Answer::of::<budgets::Budgets>("The rows")),
        get_of("/v1/budgets/{budget}", "What a budget allows, what waits for it, what of it is used", get(budgets::one), Answer::of::<BudgetSaid>("As `dripd explain --budget --json`")).problems(&[404]),
        Route::new(HttpMethod::Post, "/v1/buckets/{bucket}/purge", "Throw away what waits in a bucket", post(act::purge_route), Answer::of::<Purged>("How many there were"))
            .body(Body::if_any::<act::Purge>()),
        get_of("/v1/dead", "Dead letters, the oldest first", get(dead::list), Answer::of::<dead::DeadLetters>("The letters")).query::<dead::Listed>(),
        Route::new(HttpMethod::Post, "/v1/dead/retry", "Put dead letters back through their buckets", post(dead::retry), dead_changed())
            .body(Body::of::<Chosen>()),
        Route::new(HttpMethod::Post, "/v1/dead/drop", "Delete dead letters for good", post(dead::drop_route), dead_changed())
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
        get_of("/v1/status", "How things stand", get(ask::status), Answer::of::<Status>("As `dripd status --json`")),
        get_of(
            "/v1/routes",
            "How the routes stand: what no worker has taken yet, how old that is, how fast they take, and which buckets are held",
            get(ask::routes),
            Answer::Json(Typed::list_of::<RouteStatus>(), "As `routes` of `dripd status --json`"),
        ),
        get_of("/v1/settings", "What is set at run time", get(ask::all_settings), Answer::Json(Typed::list_of::<settings::Said>(), "As `dripd settings --json`")).query::<ask::Which>(),
        Route::new(HttpMethod::Post, "/v1/what-if", "What a change or a push would do; it changes nothing", post(ask::what_if), Answer::of::<WhatIfSaid>("As `dripd what-if --json`"))
            .body(Body::of::<ask::WhatIf>()),
        Route::new(HttpMethod::Post, "/v1/limit/{limiter}/{key}", "Ask a limiter at a key, and charge it if it allows", post(ask::limit), Answer::of::<limit::Said>("The verdict"))
            .body(Body::of::<ask::Limit>())
            .problems(&[404, 429]),
        Route::new(HttpMethod::Get, "/healthz", "Whether the loops of this daemon turn", get(health::healthz), Answer::Text).problems(&[503]),
        Route::new(HttpMethod::Get, "/readyz", "Whether this daemon serves its Redis", get(health::readyz), Answer::Text).problems(&[503]),
        Route::new(HttpMethod::Get, "/metrics", "What is measured, for Prometheus", get(metrics::all), Answer::Text),
        Route::new(HttpMethod::Get, "/metrics/buckets", "The same of the buckets that come first, or of one", get(metrics::buckets), Answer::Text)
            .query::<metrics::Which>(),
        get_of("/openapi.json", "This document", get(document), Answer::Any("OpenAPI 3.1")),
    ];
    routes.extend(changes("buckets", "bucket", &["pause", "resume", "close", "open"]));
    routes.extend(changes("budgets", "budget", &["pause", "resume"]));
    // One may be called like a word that stands where a name may stand: here the path has other methods, too.
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

/// The routes, and behind them what every answer has.
pub(super) fn router(door: &Arc<Door>) -> Router {
    let of_table = all().into_iter().map(|route| (route.path, route.handler));
    let of_words = names_like_words().into_iter().map(|(_, path, handler)| (path, handler));
    let router = of_table.chain(of_words).fold(Router::new(), |router, (path, handler)| router.route(&path, handler));
    router
        .fallback(ask::nothing)
        .method_not_allowed_fallback(ask::wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(door), who::know))
        .with_state(Arc::clone(door))
}

/// A bucket may be called like a word that stands where a name may stand: `/v1/buckets/settings/jobs` takes jobs for one called
/// `settings`. In the document it is a name like all others.
pub(super) fn names_like_words() -> Vec<(HttpMethod, String, Handler)> {
    let mut routes: Vec<(HttpMethod, String, Handler)> = Vec::new();
    let mut add = |method, path: String, handler: Handler| routes.push((method, path, handler));
    for (kind, verbs) in [("buckets", &["pause", "resume", "close", "open"][..]), ("budgets", &["pause", "resume"])] {
        let named = format!("/v1/{kind}/{SETTINGS}");
        for verb in verbs {
            add(HttpMethod::Post, format!("{named}/{verb}"), post(act::stop_route));
        }
        add(HttpMethod::Post, format!("{named}/slow"), post(act::slow_route));
        // It is the name of a key as well: of all that a glob matches.
        add(HttpMethod::Patch, format!("{named}/slow"), patch(act::set_route));
        add(HttpMethod::Delete, format!("{named}/slow"), delete(act::unset_route));
        for path in [format!("{named}/{SETTINGS}"), format!("{named}/{SETTINGS}/{{key}}")] {
            add(HttpMethod::Patch, path.clone(), patch(act::set_route));
            add(HttpMethod::Delete, path, delete(act::unset_route));
        }
    }
    add(HttpMethod::Post, format!("/v1/buckets/{SETTINGS}/jobs"), post(push::push));
    add(HttpMethod::Get, format!("/v1/buckets/{SETTINGS}/jobs"), get(jobs::waiting));
    add(HttpMethod::Get, format!("/v1/buckets/{SETTINGS}/drips"), get(jobs::drips));
    add(HttpMethod::Get, format!("/v1/buckets/{SETTINGS}/jobs/{{id}}"), get(submit::find));
    add(HttpMethod::Delete, format!("/v1/buckets/{SETTINGS}/jobs/{{id}}"), delete(submit::cancel));
    add(HttpMethod::Post, format!("/v1/buckets/{SETTINGS}/purge"), post(act::purge_route));
    routes
}
