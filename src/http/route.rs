//! A route: the handler of a request, and what `/openapi.json` says of it.

use std::sync::Arc;

use axum::routing::MethodRouter;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::schema::{AnyOfBuilder, ArrayBuilder, Schema};
use utoipa::openapi::{HttpMethod, Ref, RefOr};
use utoipa::{IntoParams, ToSchema};

use super::state::AppState;

pub(super) type Handler = MethodRouter<Arc<AppState>>;

/// Schemas with their names.
pub(super) type Schemas = Vec<(String, RefOr<Schema>)>;

/// A type in the document: a reference to it by name, and the schemas that the reference needs.
pub(super) struct Typed {
    pub(super) schema: Box<RefOr<Schema>>,
    /// What adds the schema of a type itself and those of its parts. They take megabytes, and most daemons are never
    /// asked for the document, so they are made with it.
    parts: Vec<fn(&mut Schemas)>,
}

fn add_schemas<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

impl Typed {
    pub(super) fn of<T: ToSchema>() -> Self {
        Self { schema: Box::new(Ref::from_schema_name(T::name()).into()), parts: vec![add_schemas::<T>] }
    }

    /// A list of this type.
    pub(super) fn list_of<T: ToSchema>() -> Self {
        let Self { schema, parts } = Self::of::<T>();
        Self { schema: RefOr::T(ArrayBuilder::new().items(*schema).build().into()).into(), parts }
    }

    /// This type or another one.
    pub(super) fn or<T: ToSchema>(mut self) -> Self {
        let other = Self::of::<T>();
        let any = AnyOfBuilder::new().item(*self.schema).item(*other.schema);
        self.parts.extend(other.parts);
        Self { schema: Box::new(RefOr::T(any.build().into())), parts: self.parts }
    }

    /// The schemas for the components of the document.
    pub(super) fn schemas(&self) -> Schemas {
        let mut schemas = Schemas::new();
        for add in &self.parts {
            add(&mut schemas);
        }
        schemas
    }
}

/// The body of a request.
pub(super) enum Body {
    None,
    /// Any bytes: a job, or lines that are jobs.
    Job,
    /// JSON. The body may be left out where an empty object is allowed.
    Schema {
        schema: Typed,
        required: bool,
    },
}

impl Body {
    /// JSON that must be there.
    pub(super) fn of<T: ToSchema>() -> Self {
        Self::Schema { schema: Typed::of::<T>(), required: true }
    }

    /// JSON that may be left out.
    pub(super) fn if_any<T: ToSchema>() -> Self {
        Self::Schema { schema: Typed::of::<T>(), required: false }
    }
}

/// A successful answer.
pub(super) enum Answer {
    Text,
    /// Another media type, and a description.
    Kind(&'static str, &'static str),
    /// JSON of a type, and a description.
    Json(Typed, &'static str),
    /// JSON without a schema in this document, and a description.
    Any(&'static str),
}

impl Answer {
    pub(super) fn of<T: ToSchema>(about: &'static str) -> Self {
        Self::Json(Typed::of::<T>(), about)
    }
}

/// A route: its handler, with everything that the document says of it.
pub(super) struct Route {
    pub(super) method: HttpMethod,
    pub(super) path: String,
    pub(super) says: String,
    pub(super) handler: Handler,
    /// The parameters in the query and in headers.
    pub(super) query: Vec<Parameter>,
    pub(super) body: Body,
    pub(super) answers: Vec<(u16, Answer)>,
    /// The statuses of refusals that not every request may get.
    pub(super) problems: &'static [u16],
}

impl Route {
    pub(super) fn new(
        method: HttpMethod,
        path: impl Into<String>,
        says: impl Into<String>,
        handler: Handler,
        answer: Answer,
    ) -> Self {
        let (path, says, answers) = (path.into(), says.into(), vec![(200, answer)]);
        Self { method, path, says, handler, query: Vec::new(), body: Body::None, answers, problems: &[] }
    }

    pub(super) fn query<T: IntoParams>(mut self) -> Self {
        self.query = T::into_params(|| Some(ParameterIn::Query));
        self
    }

    pub(super) fn headers(mut self, headers: impl IntoIterator<Item = Parameter>) -> Self {
        self.query.extend(headers);
        self
    }

    pub(super) fn body(self, body: Body) -> Self {
        Self { body, ..self }
    }

    pub(super) fn problems(self, problems: &'static [u16]) -> Self {
        Self { problems, ..self }
    }

    /// The types of its body and its answers.
    pub(super) fn types(&self) -> impl Iterator<Item = &Typed> {
        let body = if let Body::Schema { schema, .. } = &self.body { Some(schema) } else { None };
        let answers = self.answers.iter().filter_map(|(_, answer)| match answer {
            Answer::Json(typed, _) => Some(typed),
            _ => None,
        });
        body.into_iter().chain(answers)
    }
}
