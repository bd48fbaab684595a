//! TLS to a server of Redis: the files that it needs, and what goes wrong with it in words.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::connection::TlsSettings;

/// Read the files: they may have been renewed. Without a CA the system's roots hold, as they do for `work --http`.
pub(super) fn read(settings: &TlsSettings) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the suites of TLS 1.2 and 1.3");
    let builder = match &settings.ca {
        Some(path) => builder.with_root_certificates(roots(path)?),
        None => builder.with_platform_verifier().map_err(|why| {
            format!("redis.tls.ca: this system trusts no CA ({why}); name the certificate of the CA of your Redis here")
        })?,
    };
    let Some((cert, key)) = &settings.client else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates("redis.tls.cert", cert)?;
    let bytes = bytes("redis.tls.key", key)?;
    let key_of = |why: &PemError| match why {
        PemError::NoItemsFound => "holds no private key in PEM form; one with a passphrase cannot be used".to_owned(),
        other => format!("is no PEM file: {other}"),
    };
    let secret = PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|why| format!("redis.tls.key: {} {}", key.display(), key_of(&why)))?;
    builder.with_client_auth_cert(chain, secret).map_err(|why| match why {
        Error::InconsistentKeys(_) => {
            format!("redis.tls.key: {} is not the key of the certificate in {}", key.display(), cert.display())
        }
        other => format!("redis.tls.cert: {} and its key cannot be used: {other}", cert.display()),
    })
}

fn roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("redis.tls.ca", path)? {
        roots.add(certificate).map_err(|why| {
            format!("redis.tls.ca: {} holds a certificate that cannot be that of a CA: {why}", path.display())
        })?;
    }
    Ok(roots)
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = bytes(key, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{key}: {} holds no certificate in PEM form", path.display())),
        Ok(found) => Ok(found),
        Err(why) => Err(format!("{key}: {} is no PEM file: {why}", path.display())),
    }
}

fn bytes(key: &str, path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|why| format!("{key}: {} cannot be read: {why}", path.display()))
}

/// Speak TLS on a connection to `host`. What goes wrong is said with the way out.
pub(super) async fn speak(
    stream: TcpStream,
    settings: &TlsSettings,
    host: &str,
) -> Result<TlsStream<TcpStream>, String> {
    let config = read(settings)?;
    let name = settings.server_name.as_deref().unwrap_or(host);
    let server = ServerName::try_from(name.to_owned()).map_err(|_| {
        format!("{name} is neither a DNS name nor an IP address, so no certificate can be for it; use another one in redis.url, or set redis.tls.server_name")
    })?;
    let spoken = TlsConnector::from(Arc::new(config)).connect(server, stream).await;
    spoken.map_err(|why| in_words(&why, settings))
}

/// The way out where a server does not speak TLS.
pub(super) fn no_tls(why: &str) -> String {
    format!("{why}; name its TLS port, or, if it has none, leave TLS out (redis:// is clear text)")
}

/// Why TLS failed, and the way out. Some of it comes only with the first answer: a server that wants a certificate says so then.
pub(super) fn in_words(why: &std::io::Error, settings: &TlsSettings) -> String {
    let of_tls = why.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match of_tls {
        Some(Error::InvalidCertificate(why)) => of_certificate(why, settings),
        Some(Error::InvalidMessage(_)) => no_tls("it does not answer in TLS"),
        Some(Error::AlertReceived(alert)) => of_alert(*alert, settings),
        Some(Error::PeerIncompatible(why)) => {
            format!("it offers no safe kind of TLS ({why:?}); TLS 1.2 or newer is needed")
        }
        Some(other) => format!("TLS fails: {other}"),
        None if settings.client.is_none() => {
            format!(
                "it ended the TLS connection ({why}); if it wants a client certificate, name redis.tls.cert and key"
            )
        }
        None => format!("it ended the TLS connection: {why}"),
    }
}

fn of_certificate(why: &CertificateError, settings: &TlsSettings) -> String {
    match why {
        CertificateError::UnknownIssuer => match &settings.ca {
            Some(ca) => {
                format!("its certificate is signed by no CA in {}; name the right one in redis.tls.ca", ca.display())
            }
            None => {
                "its certificate is signed by no CA that this system trusts; name its CA in redis.tls.ca".to_owned()
            }
        },
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate is for {}, not for {}; use one of its names in redis.url, or name one in redis.tls.server_name",
            names(presented),
            expected.to_str()
        ),
        CertificateError::ExpiredContext { time, not_after } => format!(
            "its certificate expired {} ago; renew it (or the clock of this machine is wrong)",
            days(*not_after, *time)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "its certificate becomes valid only in {}; the clock of this machine or of its CA is wrong",
            days(*time, *not_before)
        ),
        other => format!("its certificate cannot be used: {other}"),
    }
}

/// `DnsName("a")` and the like, as rustls lists what a certificate is for.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
        inside.trim_matches('"').to_owned()
    };
    match presented {
        [] => "no name at all".to_owned(),
        names => names.iter().map(bare).collect::<Vec<_>>().join(", "),
    }
}

fn days(from: UnixTime, to: UnixTime) -> String {
    let seconds = to.as_secs().saturating_sub(from.as_secs());
    match seconds / 86_400 {
        0 => format!("{} minutes", seconds.div_ceil(60)),
        1 => "a day".to_owned(),
        days => format!("{days} days"),
    }
}

fn of_alert(alert: AlertDescription, settings: &TlsSettings) -> String {
    use AlertDescription as Alert;
    match (alert, settings.client.as_ref()) {
        (Alert::CertificateRequired | Alert::HandshakeFailure, None) => {
            "it wants a client certificate; name redis.tls.cert and redis.tls.key".to_owned()
        }
        (
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::DecryptError
            | Alert::UnsupportedCertificate,
            Some((cert, _)),
        ) => format!(
            "it refuses the client certificate in {} ({alert:?}); name one of a CA that it trusts",
            cert.display()
        ),
        (Alert::ProtocolVersion, _) => {
            "it speaks neither TLS 1.2 nor newer; see tls-protocols in its redis.conf".to_owned()
        }
        _ => format!("it refuses the TLS connection ({alert:?}); its log says why"),
    }
}
