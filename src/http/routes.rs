//! The requests that the door answers: one table, of which both the router and `/openapi.json` are made.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, delete, get, patch, post};
use axum::{Json, Router, middleware};
use utoipa::openapi::path::{Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, HttpMethod, InfoBuilder, OpenApi, OpenApiBuilder, PathItem, PathsBuilder, Ref,
    RefOr, Required, ResponseBuilder, SecurityRequirement,
};
use utoipa::{IntoParams, ToSchema};

use super::at::SETTINGS;
use super::problem::ProblemBody;
use super::{Door, act, ask, buckets, dead, events, front, health, metrics, pages, push, who};

type Handler = MethodRouter<Arc<Door>>;

/// What a body is.
enum Body {
    None,
    /// Any bytes.
    Job,
    /// A schema of the components, by its name.
    Words(&'static str),
    /// An object with any members.
    Object,
    /// Any value.
    Any,
}

/// What an answer that is a success is.
enum Answer {
    Text,
    /// Something else, of this media type.
    Kind(&'static str, &'static str),
    /// An object, or a list, as the documents show it.
    Json(&'static str),
    /// A schema of the components, by its name.
    Of(&'static str),
}

/// A request.
struct Route {
    method: HttpMethod,
    path: String,
    says: String,
    handler: Handler,
    query: Vec<Parameter>,
    body: Body,
    answers: Vec<(u16, Answer)>,
    /// Other answers than those that any request may get.
    problems: &'static [u16],
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

    fn body(self, body: Body) -> Self {
        Self { body, ..self }
    }

    fn problems(self, problems: &'static [u16]) -> Self {
        Self { problems, ..self }
    }

    /// A name for the operation, from its method and path.
    fn id(&self) -> String {
        let method = match self.method {
            HttpMethod::Get => "get",
            HttpMethod::Post => "post",
            HttpMethod::Patch => "patch",
            HttpMethod::Delete => "delete",
            _ => "do",
        };
        let words = self.path.split(['/', '{', '}', '-', '.']).filter(|word| !word.is_empty() && *word != "v1");
        words.fold(method.to_owned(), |id, word| id + "_" + word)
    }

    fn operation(&self) -> Operation {
        let names = self.path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        let in_path = names.map(|name| {
            let about = format!("The {name}, percent-encoded");
            ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Path)
                .required(Required::True)
                .description(Some(about))
                .schema(Some(ObjectBuilder::new().schema_type(Type::String).min_length(Some(1))))
                .build()
        });
        let tag = self.path.trim_start_matches("/v1").split('/').nth(1).unwrap_or_default().to_owned();
        let mut operation = OperationBuilder::new()
            .operation_id(Some(self.id()))
            .tag(if tag.is_empty() { "page".to_owned() } else { tag })
            .summary(Some(self.says.clone()));
        for parameter in in_path.chain(self.query.iter().cloned()) {
            operation = operation.parameter(parameter);
        }
        if let Some((kind, schema, required)) = self.body.described() {
            let required = if required { Required::True } else { Required::False };
            let content = ContentBuilder::new().schema(Some(schema)).build();
            operation = operation
                .request_body(Some(RequestBodyBuilder::new().content(kind, content).required(Some(required)).build()));
        }
        for (status, answer) in &self.answers {
            let (about, kind, schema) = match answer {
                Answer::Text => ("Text", "text/plain", string()),
                Answer::Kind(kind, about) => (*about, *kind, string()),
                Answer::Json(about) => (*about, "application/json", any()),
                Answer::Of(name) => ("It was done", "application/json", Ref::from_schema_name(*name).into()),
            };
            let content = ContentBuilder::new().schema(Some(schema)).build();
            let response = ResponseBuilder::new().description(about).content(kind, content).build();
            operation = operation.response(status.to_string(), response);
        }
        for status in self.problems {
            operation = operation.response(status.to_string(), problem());
        }
        operation.response("default", problem()).build()
    }
}

impl Body {
    fn described(&self) -> Option<(&'static str, RefOr<Schema>, bool)> {
        Some(match self {
            Self::None => return None,
            Self::Job => ("application/octet-stream", string(), true),
            Self::Words(name) => ("application/json", Ref::from_schema_name(*name).into(), false),
            Self::Object => ("application/json", RefOr::T(ObjectBuilder::new().build().into()), true),
            Self::Any => ("application/json", any(), true),
        })
    }
}

fn string() -> RefOr<Schema> {
    RefOr::T(ObjectBuilder::new().schema_type(Type::String).build().into())
}

fn any() -> RefOr<Schema> {
    RefOr::T(ObjectBuilder::new().schema_type(utoipa::openapi::schema::SchemaType::AnyValue).build().into())
}

fn problem() -> utoipa::openapi::Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description("Why it came to nothing").content("application/problem+json", content).build()
}

const MAY_WAIT: &str = "What was changed, with each key before and after";

/// The requests about buckets, or about budgets, that change something: about the one that is named, or those that a glob matches.
fn changes(kind: &str, one: &str, verbs: &[&str]) -> Vec<Route> {
    let mut routes = Vec::new();
    for (base, of, is_glob) in [
        (format!("/v1/{kind}/{{{one}}}"), format!("a {one}"), false),
        (format!("/v1/{kind}"), format!("all {kind} that a glob matches"), true),
    ] {
        let settings = format!("{base}/{SETTINGS}");
        let with = |route: Route| route.query::<act::Words>();
        routes.push(with(
            Route::new(
                HttpMethod::Patch,
                &settings,
                format!("Set keys of the policy of {of}"),
                patch(act::set_route),
                Answer::Json(MAY_WAIT),
            )
            .body(Body::Object),
        ));
        routes.push(with(
            Route::new(
                HttpMethod::Patch,
                format!("{settings}/{{key}}"),
                format!("Set a key of {of}"),
                patch(act::set_route),
                Answer::Json(MAY_WAIT),
            )
            .body(Body::Any),
        ));
        let back = format!("Take what is set of {of} back to the file");
        let unset = |path: String, says: String| {
            with(Route::new(HttpMethod::Delete, path, says, delete(act::unset_route), Answer::Json(MAY_WAIT)))
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
                Answer::Json(MAY_WAIT),
            );
            routes.push(with(route.body(Body::Words("Stop"))));
        }
        if !is_glob {
            let says = format!("Slow down {of} for a while, or end that");
            let answer = Answer::Json("When it goes on");
            routes.push(
                Route::new(HttpMethod::Post, format!("{base}/slow"), says, post(act::slow_route), answer)
                    .body(Body::Words("Slow")),
            );
        }
    }
    routes
}

/// All requests.
fn all() -> Vec<Route> {
    let get_of = |path: &str, says: &str, handler: Handler, about: &'static str| {
        Route::new(HttpMethod::Get, path, says, handler, Answer::Json(about))
    };
    let mut routes = vec![
        Route {
            answers: vec![(202, Answer::Of("Accepted")), (200, Answer::Of("SomeAccepted"))],
            ..Route::new(
                HttpMethod::Post,
                "/v1/buckets/{bucket}/jobs",
                "Push a job: the body, as it is; or each of its lines is one. It is never repeated by the door: after a 504 it may have gone in",
                post(push::push),
                Answer::Text,
            )
        }
        .query::<push::How>()
        .body(Body::Job)
        .problems(&[413, 415, 429]),
        get_of("/v1/buckets", "The first buckets by an order, as the last walk found them", get(buckets::top), "The rows, and how old they are")
            .query::<buckets::Which>(),
        get_of("/v1/buckets/{bucket}", "How a bucket stands, and why it waits", get(buckets::bucket), "`status` and `explanation`"),
        get_of("/v1/buckets/{bucket}/jobs", "The first bytes of the jobs that leave a bucket next", get(front::jobs), "The jobs, the next one first")
            .query::<front::HowMany>(),
        get_of("/v1/buckets/{bucket}/drips", "The last dispatches of a bucket: when each job was due, and when it left. They are remembered for half a minute after each request", get(front::drips), "`drips`: due and left, microseconds since the epoch"),
        get_of("/v1/budgets", "The budgets for whose shares most wait, and those that the configuration names, as they stand now", get(front::budgets), "The rows"),
        get_of("/v1/budgets/{budget}", "What a budget allows, what waits for it, what of it is used", get(buckets::budget), "As `dripd explain --budget --json`"),
        Route::new(HttpMethod::Post, "/v1/buckets/{bucket}/purge", "Throw away what waits in a bucket", post(act::purge_route), Answer::Json("How many there were"))
            .body(Body::Words("Purge")),
        get_of("/v1/dead", "Dead letters, the oldest first", get(dead::list), "`letters`, and `next`: the `after` of the next page").query::<dead::Which>(),
        Route::new(HttpMethod::Post, "/v1/dead/retry", "Put dead letters back through their buckets", post(dead::retry), Answer::Json("How many"))
            .body(Body::Words("DeadLetters")),
        Route::new(HttpMethod::Post, "/v1/dead/drop", "Delete dead letters for good", post(dead::drop_route), Answer::Json("How many"))
            .body(Body::Words("DeadLetters")),
        Route::new(
            HttpMethod::Get,
            "/v1/events",
            "What is going on, as it happens: `history` at first, then `totals` once a second, `changes` and `redis` as they come",
            get(events::events),
            Answer::Kind("text/event-stream", "Events, each with an object or a list"),
        )
        .problems(&[503]),
        Route::new(HttpMethod::Get, "/", "The dashboard", get(pages::page), Answer::Kind("text/html", "A page")),
        Route::new(HttpMethod::Get, "/assets/{file}", "What belongs to the dashboard", get(pages::asset), Answer::Kind("*/*", "A file"))
            .problems(&[404]),
        get_of("/v1/status", "How things stand", get(ask::status), "As `dripd status --json`"),
        get_of("/v1/settings", "What is set at run time", get(ask::all_settings), "As `dripd settings --json`").query::<ask::Which>(),
        Route::new(HttpMethod::Post, "/v1/what-if", "What a change or a push would do; it changes nothing", post(ask::what_if), Answer::Json("As `dripd what-if --json`"))
            .body(Body::Words("WhatIf")),
        Route::new(HttpMethod::Post, "/v1/limit/{limiter}/{key}", "Ask a limiter at a key, and charge it if it allows", post(ask::limit), Answer::Json("The verdict"))
            .body(Body::Words("Limit"))
            .problems(&[429]),
        Route::new(HttpMethod::Get, "/healthz", "Whether the loops of this daemon turn", get(health::healthz), Answer::Text),
        Route::new(HttpMethod::Get, "/readyz", "Whether this daemon serves its Redis", get(health::readyz), Answer::Text),
        Route::new(HttpMethod::Get, "/metrics", "What is measured, for Prometheus", get(metrics::all), Answer::Text),
        Route::new(HttpMethod::Get, "/metrics/buckets", "The same of the buckets that come first, or of one", get(metrics::buckets), Answer::Text)
            .query::<metrics::Which>(),
        get_of("/openapi.json", "This document", get(document), "OpenAPI 3.1"),
    ];
    routes.extend(changes("buckets", "bucket", &["pause", "resume", "close", "open"]));
    routes.extend(changes("budgets", "budget", &["pause", "resume"]));
    routes
}

/// The routes, and behind them what every answer has.
pub(super) fn router(door: &Arc<Door>) -> Router {
    let mut router = Router::new();
    for route in all() {
        router = router.route(&route.path, route.handler);
    }
    router = names_like_words(router);
    router
        .fallback(ask::nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(door), who::know))
        .with_state(Arc::clone(door))
}

/// A bucket may be called like a word that stands where a name may stand: `GET /v1/buckets/pause` is about that one, and
/// `/v1/buckets/settings/jobs` takes jobs for one called `settings`.
fn names_like_words(mut router: Router<Arc<Door>>) -> Router<Arc<Door>> {
    for (kind, verbs) in [("buckets", &["pause", "resume", "close", "open"][..]), ("budgets", &["pause", "resume"])] {
        let one = if kind == "buckets" { get(buckets::bucket) } else { get(buckets::budget) };
        for word in verbs.iter().chain([&SETTINGS]) {
            router = router.route(&format!("/v1/{kind}/{word}"), one.clone());
        }
        let named = format!("/v1/{kind}/{SETTINGS}");
        for verb in verbs {
            router = router.route(&format!("{named}/{verb}"), post(act::stop_route));
        }
        router = router
            .route(&format!("{named}/slow"), post(act::slow_route))
            .route(&format!("{named}/{SETTINGS}"), patch(act::set_route).delete(act::unset_route))
            .route(&format!("{named}/{SETTINGS}/{{key}}"), patch(act::set_route).delete(act::unset_route));
    }
    router
        .route(&format!("/v1/buckets/{SETTINGS}/jobs"), post(push::push).get(front::jobs))
        .route(&format!("/v1/buckets/{SETTINGS}/drips"), get(front::drips))
        .route(&format!("/v1/buckets/{SETTINGS}/purge"), post(act::purge_route))
}

fn openapi() -> OpenApi {
    let mut paths = PathsBuilder::new();
    for route in all() {
        paths = paths.path(route.path.clone(), PathItem::new(route.method.clone(), route.operation()));
    }
    fn of<T: ToSchema>(name: &'static str) -> (&'static str, RefOr<Schema>) {
        (name, T::schema())
    }
    let mut components = ComponentsBuilder::new();
    for (name, schema) in [
        of::<ProblemBody>("Problem"),
        of::<push::Accepted>("Accepted"),
        of::<push::SomeAccepted>("SomeAccepted"),
        of::<act::Stop>("Stop"),
        of::<act::Slow>("Slow"),
        of::<act::Purge>("Purge"),
        of::<dead::Which>("DeadLetters"),
        of::<ask::WhatIf>("WhatIf"),
        of::<ask::Limit>("Limit"),
    ] {
        components = components.schema(name, schema);
    }
    components = components.security_scheme("token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    let info = InfoBuilder::new().title("dripd").version(env!("CARGO_PKG_VERSION")).description(Some(
        "Per-key leaky buckets as queues: push jobs, see why they wait, and change what holds. Whoever may do what is said in docs/http.md.",
    ));
    let no_token: [&str; 0] = [];
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.build()))
        .security(Some([SecurityRequirement::default(), SecurityRequirement::new("token", no_token)]))
        .build()
}

/// `GET /openapi.json`.
async fn document(
    State(_): State<Arc<Door>>,
    axum::Extension(caller): axum::Extension<who::Caller>,
) -> Result<impl IntoResponse, super::problem::Problem> {
    caller.may_read(None)?;
    Ok(([(header::CACHE_CONTROL, "no-cache")], Json(openapi())))
}
