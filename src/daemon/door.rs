//! The HTTP door of a daemon: whether there is one.

use std::sync::Arc;

use tracing::warn;

use super::DaemonError;
use crate::config::{Config, Environment};
use crate::http::{self, BadListener, Keys, Listeners};
use crate::loops::progress::Progress;
use crate::store::Address;

/// Open the HTTP door. Where the default port is taken, most likely by another daemon of this machine, this one serves without.
pub(super) fn open(
    config: &Config,
    address: &Address,
    progress: &Arc<Progress>,
    environment: &Environment,
) -> Result<Option<http::Open>, DaemonError> {
    let keys = Keys::read(&config.http, &config.source())?;
    let listeners = match Listeners::open(&config.http, keys.has_tokens()) {
        Ok(Some(listeners)) => listeners,
        Ok(None) => return Ok(None),
        Err(why @ BadListener::Taken { .. }) if !config.http.listen_is_written => {
            warn!(%why, "this daemon serves without HTTP; http.listen names another place, or \"\" for none");
            return Ok(None);
        }
        Err(why) => return Err(why.into()),
    };
    let (progress, host) = (Arc::clone(progress), environment.host.clone());
    let door = http::Open::new(listeners, config.clone(), keys, address.clone(), progress, host);
    door.map(Some).map_err(|why| DaemonError::System { what: "start the HTTP door", why })
}
