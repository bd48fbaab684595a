//! Authorization: the host names of this server, where a request comes from, and what its token permits.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, header};
use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq as _;

use super::problem::Problem;
use crate::config::BadConfig;
use crate::config::http::{HttpSettings, May, is_loopback};
use crate::model::glob::{Glob, Table};

/// The name of a caller on this machine without a token.
const NOBODY: &str = "local";

/// A token: its name, the SHA-256 of its text, and what it permits. The text itself is not kept.
pub(super) struct Token {
    name: String,
    digest: Vec<u8>,
    may: May,
    /// The glob of the names that it is for; none: all.
    only: Option<String>,
}

/// The tokens and the host names that the configuration lists.
#[derive(Clone, Default)]
pub struct AccessPolicy {
    tokens: Vec<Arc<Token>>,
    hosts: Vec<String>,
}

/// The listener that a connection came through.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListenerInfo {
    /// Whether only this machine can reach the listener.
    pub(super) is_local: bool,
}

/// The caller of a request.
#[derive(Clone)]
pub(super) struct Caller {
    token: Option<Arc<Token>>,
    is_local: bool,
    /// Whether any token is configured; if so, every change needs one.
    has_tokens: bool,
}

impl AccessPolicy {
    /// Read the files of the tokens.
    ///
    /// # Errors
    ///
    /// The first file that cannot be read, holds no valid token, or holds the token of another file.
    pub fn read(settings: &HttpSettings, source: &str) -> Result<Self, BadConfig> {
        let mut policy = Self { tokens: Vec::new(), hosts: settings.hosts.clone() };
        for one in &settings.tokens {
            let refuse = |why: &str| {
                let (name, file) = (&one.name, one.file.display());
                Err(BadConfig::one(source, format!("http.token {name:?}: {file} {why}")))
            };
            let text = match std::fs::read_to_string(&one.file) {
                Ok(text) => text,
                Err(why) => return refuse(&format!("cannot be read: {why}")),
            };
            let first = text.lines().next().unwrap_or_default().trim();
            if first.is_empty() {
                return refuse("has no token in its first line; `openssl rand -hex 32` makes one");
            }
            if !first.bytes().all(|byte| byte.is_ascii_graphic()) {
                return refuse(
                    "has a first line that no header can hold: write letters, digits and signs without spaces",
                );
            }
            let digest = digest(&SHA256, first.as_bytes()).as_ref().to_vec();
            if let Some(same) = policy.tokens.iter().find(|other| other.digest == digest) {
                return refuse(&format!("holds the token of {:?} too: who asks could not be told", same.name));
            }
            policy.tokens.push(Arc::new(Token {
                name: one.name.clone(),
                digest,
                may: one.may,
                only: one.only.clone(),
            }));
        }
        Ok(policy)
    }

    /// Whether any token is configured.
    pub fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// The token that was given. Each token is compared in constant time, so that the time tells nothing about them.
    fn find(&self, given: &str) -> Option<Arc<Token>> {
        let given = digest(&SHA256, given.as_bytes());
        let mut found = None;
        for token in &self.tokens {
            if bool::from(token.digest.ct_eq(given.as_ref())) {
                found = Some(Arc::clone(token));
            }
        }
        found
    }

    /// Whether the configuration lists this host name. Loopback names are valid without that.
    fn has_host(&self, host: &Authority) -> bool {
        let (with_port, name) = (host.as_str().to_ascii_lowercase(), host.host().to_ascii_lowercase());
        self.hosts.iter().any(|known| *known == with_port || *known == name)
    }
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail).header(header::WWW_AUTHENTICATE, "Bearer")
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
}

/// The refusal of a change, or of bytes of jobs, where no token is configured.
fn name_a_token(what: &str) -> Problem {
    forbidden(format!(
        "{what} needs a token, and none is named: add [[http.token]] with name, file and may = \"operate\" to the \
         configuration, and send its first line as Authorization: Bearer"
    ))
}

impl Caller {
    /// The name of the caller, for events.
    pub(super) fn name(&self) -> &str {
        self.token.as_ref().map_or(NOBODY, |token| &token.name)
    }

    /// Whether the caller's token permits one of `enough`, for a bucket or, with `None`, for all. The reply is `None` if
    /// there is no token.
    fn permits(&self, enough: &[May], bucket: Option<&str>) -> Option<Result<(), Problem>> {
        let token = self.token.as_ref()?;
        if !enough.contains(&token.may) {
            let (name, may) = (&token.name, token.may.as_str());
            return Some(Err(forbidden(format!("the token {name:?} may {may}, and no more"))));
        }
        if token.only.is_some() && !bucket.is_some_and(|bucket| self.covers(bucket)) {
            let why = match bucket {
                Some(bucket) => format!("the token {:?} is not for the bucket {bucket:?}", token.name),
                None => format!(
                    "the token {:?} is for some buckets only, and this request is about all of them",
                    token.name
                ),
            };
            return Some(Err(forbidden(why)));
        }
        Some(Ok(()))
    }

    /// Whether the caller's token, if there is one, is for all buckets.
    pub(super) fn is_for_all(&self) -> bool {
        self.token.as_ref().is_none_or(|token| token.only.is_none())
    }

    /// Whether the caller's token is for the bucket or the budget of this name.
    pub(super) fn covers(&self, name: &str) -> bool {
        let only = self.token.as_ref().and_then(|token| token.only.as_ref());
        only.is_none_or(|only| Glob::parse(only).matches(name.as_bytes()))
    }

    /// Whether the caller's token certainly is for every name that this glob matches.
    pub(super) fn covers_all_of(&self, names: &str) -> bool {
        let only = self.token.as_ref().and_then(|token| token.only.as_ref());
        only.is_none_or(|only| {
            let mut table = Table::default();
            table.add(only, 0);
            table.covering(names).is_some()
        })
    }

    /// Whether the caller may push into a bucket.
    pub(super) fn may_push(&self, bucket: &str) -> Result<(), Problem> {
        match self.permits(&[May::Push, May::Operate], Some(bucket)) {
            Some(said) => said,
            None if self.is_local && !self.has_tokens => Ok(()),
            None => Err(unauthorized("a push needs a token that may push")),
        }
    }

    /// Whether the caller may read answers without bytes of jobs, about a bucket or, with `None`, about all.
    pub(super) fn may_read(&self, bucket: Option<&str>) -> Result<(), Problem> {
        match self.permits(&[May::Read, May::Operate], bucket) {
            Some(said) => said,
            None if self.is_local => Ok(()),
            None => Err(unauthorized("a request from another machine needs a token that may read")),
        }
    }

    /// Whether the caller may read answers without bytes of jobs about some bucket, whichever that is: before a body
    /// that names the bucket is read.
    pub(super) fn may_read_some(&self) -> Result<(), Problem> {
        let reads = self.token.as_ref().is_some_and(|token| token.may != May::Push);
        if reads { Ok(()) } else { self.may_read(None) }
    }

    /// Whether the caller may change something about a budget above one of its buckets.
    pub(super) fn may_operate_in(&self, budget: &str) -> Result<(), Problem> {
        self.may_operate(Some(budget)).map_err(|why| {
            if self.covers(budget) {
                why
            } else {
                forbidden(format!("the token {:?} is not for the budget {budget:?}", self.name()))
            }
        })
    }

    /// Whether the caller may read answers with bytes of jobs.
    pub(super) fn may_see_jobs(&self, bucket: Option<&str>) -> Result<(), Problem> {
        match self.permits(&[May::Read, May::Operate], bucket) {
            Some(said) => said,
            None if self.is_local && !self.has_tokens => Err(name_a_token("what shows jobs")),
            None => Err(unauthorized("what shows jobs needs a token that may read")),
        }
    }

    /// Whether the caller may change something, about a bucket or, with `None`, about all.
    pub(super) fn may_operate(&self, bucket: Option<&str>) -> Result<(), Problem> {
        match self.permits(&[May::Operate], bucket) {
            Some(said) => said,
            None if self.is_local && !self.has_tokens => Err(name_a_token("a change")),
            None => Err(unauthorized("a change needs a token that may operate")),
        }
    }
}

/// The host that a request is for: the one in its target, or in its only Host header.
fn host_of(request: &Request) -> Result<Authority, Problem> {
    let mut given = request.headers().get_all(header::HOST).iter();
    let (first, second) = (given.next(), given.next());
    let parse = |text: &[u8]| Authority::try_from(text).ok().filter(|host| !host.as_str().contains('@'));
    let wrong = || Problem::bad_request("write one Host header, a name or an address, with or without a port");
    if second.is_some() {
        return Err(wrong());
    }
    let of_header = first.map(|value| parse(value.as_bytes()).ok_or_else(wrong)).transpose()?;
    match (request.uri().authority(), of_header) {
        (Some(target), Some(host)) if *target != host => {
            Err(Problem::bad_request("the target of the request names another host than its Host header"))
        }
        (Some(target), _) => parse(target.as_str().as_bytes()).ok_or_else(wrong),
        (None, host) => host.ok_or_else(wrong),
    }
}

fn is_loopback_name(host: &Authority) -> bool {
    let name = host.host().trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(is_loopback)
}

/// Whether the headers of a proxy say that the request comes from somebody else.
fn is_proxied(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| *name == header::FORWARDED || name.as_str().starts_with("x-forwarded-") || name == "x-real-ip")
}

/// Whether a page of another site makes the request.
fn is_foreign(headers: &HeaderMap, host: &Authority) -> bool {
    let is_cross_site = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    let of_other = headers.get_all(header::ORIGIN).iter().any(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let of = origin.split_once("://").map_or(origin, |(_, of)| of);
        !of.eq_ignore_ascii_case(host.as_str())
    });
    is_cross_site || of_other
}

/// The bearer token of a request; `None` without an Authorization header.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return if headers.contains_key(header::AUTHORIZATION) {
            Err(unauthorized("write one Authorization header"))
        } else {
            Ok(None)
        };
    };
    let text = value.to_str().unwrap_or_default();
    let token =
        text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    token.map(Some).ok_or_else(|| unauthorized("write Authorization: Bearer and the token"))
}

/// How much a path shows to a caller without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exposure {
    /// A page of the dashboard, which holds no data.
    Page,
    /// The health of this daemon.
    Health,
    /// Everything else.
    Private,
}

impl AccessPolicy {
    /// Find the caller, before anything else of a request is examined and before its body is read.
    pub(super) fn authenticate(&self, request: &Request, exposure: Exposure) -> Result<Caller, Problem> {
        let host = host_of(request)?;
        let is_loopback = is_loopback_name(&host);
        if !is_loopback && !self.has_host(&host) {
            let why = format!(
                "dripd is not known here as {:?}: list the names by which others reach it in http.hosts",
                host.as_str()
            );
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", why));
        }
        let headers = request.headers();
        let reads_page = exposure == Exposure::Page && matches!(*request.method(), Method::GET | Method::HEAD);
        if is_foreign(headers, &host) && !reads_page {
            return Err(forbidden("a page of another site may not ask this"));
        }
        let token = match bearer(headers)? {
            None => None,
            Some(given) => Some(self.find(given).ok_or_else(|| unauthorized("no token like this one is named"))?),
        };
        let is_local = request.extensions().get::<ListenerInfo>().is_some_and(|listener| listener.is_local)
            && is_loopback
            && !is_proxied(headers);
        // A caller from elsewhere without a token is refused here, before the request is examined, and so learns
        // nothing.
        if token.is_none() && !is_local && !reads_page && exposure != Exposure::Health {
            return Err(unauthorized("a request from another machine needs a token"));
        }
        Ok(Caller { token, is_local, has_tokens: self.has_tokens() })
    }
}
