//! Opening the HTTP server of a daemon, if it has one.

use std::sync::Arc;

use tracing::warn;

use super::DaemonError;
use crate::config::{Config, Environment};
use crate::http::{AccessPolicy, BadListener, HttpServer, Listeners};
use crate::loops::progress::Progress;
use crate::store::Address;

/// Open the HTTP server. Where the default port is taken, most likely by another daemon of this machine, this one serves without.
pub(super) fn open(
    config: &Config,
    address: &Address,
    progress: &Arc<Progress>,
    environment: &Environment,
) -> Result<Option<HttpServer>, DaemonError> {
    let access = AccessPolicy::read(&config.http, &config.source())?;
    let listeners = match Listeners::open(&config.http, access.has_tokens()) {
        Ok(Some(listeners)) => listeners,
        Ok(None) => return Ok(None),
        Err(why @ BadListener::Taken { .. }) if !config.http.listen_is_written => {
            warn!(%why, "this daemon serves without HTTP; set http.listen to another address, or to \"\" for none");
            return Ok(None);
        }
        Err(why) => return Err(why.into()),
    };
    let (progress, host) = (Arc::clone(progress), environment.host.clone());
    let server = HttpServer::start(listeners, config.clone(), access, address.clone(), progress, host);
    server.map(Some).map_err(|why| DaemonError::System { what: "start the HTTP server", why })
}
