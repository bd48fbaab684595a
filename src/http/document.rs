//! `/openapi.json`: the table of routes as an `OpenAPI` 3.1 document.

pub(super) mod bodies;
pub(super) mod keys;
pub(super) mod shapes;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use axum::Extension;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::path::{Operation, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, HeaderBuilder, HttpMethod, InfoBuilder, OpenApi, OpenApiBuilder, PathItem,
    PathsBuilder, Ref, RefOr, Required, Response, ResponseBuilder, SecurityRequirement,
};
use utoipa::{PartialSchema as _, ToSchema as _};

use shapes::{JobId, Name};

use super::context::Context;
use super::problem::{Problem, ProblemBody};
use super::push::NDJSON;
use super::route::{Answer, Body, Route, Typed};
use crate::model::limiter::Kind;

impl Route {
    /// The id of the operation, made of its method and path.
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
            let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
            let about = format!("The {name}, percent-encoded");
            parameter.description(Some(about)).schema(Some(self.in_path(name))).build()
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
            let mut body = RequestBodyBuilder::new().content(kind, content.clone()).required(Some(required));
            if matches!(self.body, Body::Job) {
                body = body.content(NDJSON, content).description(Some("With `split=lines` of this second type"));
            }
            operation = operation.request_body(Some(body.build()));
        }
        for (status, answer) in &self.answers {
            let (about, kind, schema) = match answer {
                Answer::Text => ("Text", "text/plain", string()),
                Answer::Kind(kind, about) => (*about, *kind, string()),
                Answer::Json(typed, about) => (*about, "application/json", (*typed.schema).clone()),
                Answer::Any(about) => (*about, "application/json", any()),
            };
            let content = ContentBuilder::new().schema(Some(schema)).build();
            let response = ResponseBuilder::new().description(about).content(kind, content).build();
            operation = operation.response(status.to_string(), response);
        }
        for status in self.refusals() {
            operation = operation.response(status.to_string(), problem(status));
        }
        operation.build()
    }

    /// The schema of a parameter in the path, by its name.
    fn in_path(&self, name: &str) -> RefOr<Schema> {
        match name {
            "bucket" | "budget" => Ref::from_schema_name(Name::name()).into(),
            "id" => Ref::from_schema_name(JobId::name()).into(),
            "limiter" => RefOr::T(one_of(Kind::ALL.map(Kind::as_str))),
            "key" if self.path.contains("/settings/") => {
                RefOr::T(one_of(keys::names(self.path.starts_with("/v1/budgets"))))
            }
            _ => RefOr::T(ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).into()),
        }
    }

    /// The statuses with which a request may be refused. Any request may be malformed or not allowed.
    fn refusals(&self) -> BTreeSet<u16> {
        let reads_body = !matches!(self.body, Body::None);
        let asks_redis = self.path.starts_with("/v1/") || self.path.starts_with("/metrics");
        let of = |are: &'static [u16], may: bool| are.iter().copied().filter(move |_| may);
        of(&[400, 401, 403, 421], true)
            .chain(of(&[408, 413], reads_body))
            .chain(of(&[409, 502, 503, 504], asks_redis))
            .chain(of(self.problems, true))
            .collect()
    }
}

impl Body {
    fn described(&self) -> Option<(&'static str, RefOr<Schema>, bool)> {
        Some(match self {
            Self::None => return None,
            Self::Job => ("application/octet-stream", string(), true),
            Self::Schema { schema, required } => ("application/json", (*schema.schema).clone(), *required),
        })
    }
}

fn one_of(words: impl IntoIterator<Item = &'static str>) -> Schema {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).into()
}

fn string() -> RefOr<Schema> {
    RefOr::T(ObjectBuilder::new().schema_type(Type::String).build().into())
}

fn any() -> RefOr<Schema> {
    RefOr::T(ObjectBuilder::new().schema_type(utoipa::openapi::schema::SchemaType::AnyValue).build().into())
}

/// The response of a refusal, by its status.
fn problem(status: u16) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let about = match status {
        400 => "It is wrong; `detail` names all that is",
        401 => "It needs a token, or another one",
        403 => "The token does not open that, or a page of another site asks",
        404 => "There is nothing of that name",
        408 => "The body took too long; nothing was changed",
        409 => {
            "What is there stands in the way: another change that still spreads, a key of another type, or a job that has left"
        }
        413 => "The body, or a line of it, is too large; nothing was changed",
        415 => "The body is of another type; nothing was changed",
        421 => "This server is not known by the name in Host: see http.hosts",
        429 => {
            "There is no room now. Of a job with options `error` says why: `full`, `late` (it could not leave before its deadline) or `gated` (a limiter)"
        }
        502 => "Redis refused it, or answered with something unexpected",
        503 => "Redis cannot be used now, and nothing was changed",
        504 => "Redis was lost: it is not known whether it was done. The server never repeats it",
        _ => "Why it came to nothing",
    };
    let response = ResponseBuilder::new().description(about).content("application/problem+json", content);
    let header = |says: &str, kind| {
        HeaderBuilder::new().description(Some(says)).schema(Some(ObjectBuilder::new().schema_type(kind))).build()
    };
    match status {
        401 => response.header("WWW-Authenticate", header("How a token is given", Type::String)),
        429 | 503 => response.header("Retry-After", header("In how many seconds it may be tried again", Type::Integer)),
        _ => response,
    }
    .build()
}

/// The document of these routes.
pub(super) fn openapi(routes: Vec<Route>) -> OpenApi {
    let mut paths = PathsBuilder::new();
    let mut components = ComponentsBuilder::new().schema("Problem", ProblemBody::schema());
    components = components.schemas_from_iter(shapes::all());
    for route in routes {
        let operation = route.operation();
        components = components.schemas_from_iter(route.types().flat_map(Typed::schemas));
        paths = paths.path(route.path, PathItem::new(route.method, operation));
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

/// The document as text. The text never changes, so it is made once, at the first request for it.
pub(super) struct Document {
    routes: fn() -> Vec<Route>,
    text: OnceLock<Bytes>,
}

impl Document {
    /// The document of these routes.
    pub(super) fn of(routes: fn() -> Vec<Route>) -> Self {
        Self { routes, text: OnceLock::new() }
    }

    fn text(&self) -> Bytes {
        self.text.get_or_init(|| serde_json::to_vec(&openapi((self.routes)())).unwrap_or_default().into()).clone()
    }
}

/// `GET /openapi.json`.
pub(super) async fn document(
    Extension(document): Extension<Arc<Document>>,
    Context { caller, .. }: Context,
) -> Result<impl IntoResponse, Problem> {
    caller.may_read(None)?;
    let headers = [(header::CACHE_CONTROL, "no-cache"), (header::CONTENT_TYPE, "application/json")];
    Ok((headers, document.text()))
}
