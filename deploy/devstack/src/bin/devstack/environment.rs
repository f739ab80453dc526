//! The environment variables of the four services.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use devstack::{Error, ports};
use serde::{Deserialize, Serialize};

use crate::state::Secrets;

/// The services' programs and their common environment.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Services {
    /// Each service's program, by name.
    pub(crate) programs: BTreeMap<String, PathBuf>,
    /// Variables in addition to the current environment.
    pub(crate) variables: BTreeMap<String, String>,
}

impl Services {
    /// Returns one program, found beside this one, without an environment.
    pub(crate) fn beside_this_program(name: &str) -> Option<Self> {
        let path = std::env::current_exe().ok()?.with_file_name(name);
        path.is_file()
            .then(|| Self { programs: [(name.to_owned(), path)].into(), variables: BTreeMap::new() })
    }

    pub(crate) fn program(&self, name: &str) -> anyhow::Result<&Path> {
        self.programs.get(name).map(PathBuf::as_path).with_context(|| format!("there is no program {name}"))
    }
}

/// The addresses that the services listen on.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    pub(crate) api: SocketAddr,
    pub(crate) edge: SocketAddr,
    /// Each service's operations address, by name.
    pub(crate) operations: BTreeMap<&'static str, SocketAddr>,
}

impl Addresses {
    /// Chooses the usual ports when they are free, or else others.
    pub(crate) fn choose(listen: IpAddr) -> Result<Self, Error> {
        let public = |port| Ok::<_, Error>(SocketAddr::new(listen, ports::prefer(port)?));
        let local = |port| Ok::<_, Error>(SocketAddr::from(([127, 0, 0, 1], ports::prefer(port)?)));
        let operations = [("ingest", 9101), ("processor", 9102), ("api", 9103), ("dispatcher", 9104)];
        Ok(Self {
            api: public(8080)?,
            edge: public(8081)?,
            operations: operations
                .map(|(name, port)| Ok((name, local(port)?)))
                .into_iter()
                .collect::<Result<_, Error>>()?,
        })
    }
}

/// Returns the URL of a listener, with the loopback address for one on all addresses.
pub(crate) fn url(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(all) if all.ip().is_unspecified() => format!("http://127.0.0.1:{}", all.port()),
        SocketAddr::V6(all) if all.ip().is_unspecified() => format!("http://[::1]:{}", all.port()),
        other => format!("http://{other}"),
    }
}

/// Returns the services' environment variables.
pub(crate) fn variables(
    engines: impl IntoIterator<Item = (&'static str, String)>,
    addresses: &Addresses,
    secrets: &Secrets,
    spool: &Path,
) -> BTreeMap<String, String> {
    let loopback = "127.0.0.0/8,::1/128";
    let mut variables: BTreeMap<String, String> = [
        ("HOPLINE_API_LISTEN", addresses.api.to_string()),
        ("HOPLINE_EDGE_LISTEN", addresses.edge.to_string()),
        ("HOPLINE_PUBLIC_URL", url(addresses.edge)),
        // Not for production: trusts clients' headers with addresses, and allows webhooks to this machine.
        ("HOPLINE_TRUSTED_PROXIES", loopback.to_owned()),
        ("HOPLINE_WEBHOOK_ALLOW", loopback.to_owned()),
        // Also contains the edge's snapshot of the links.
        ("HOPLINE_SPOOL_DIR", spool.display().to_string()),
        ("HOPLINE_CLICK_ID_KEYS", secrets.click_id_keys.clone()),
        ("HOPLINE_VISITOR_KEY", secrets.visitor_key.clone()),
        ("HOPLINE_SECRET_KEYS", secrets.secret_keys.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    variables.extend(engines.into_iter().map(|(name, value)| (name.to_owned(), value)));
    for (service, address) in &addresses.operations {
        variables
            .insert(format!("HOPLINE_{}_OPERATIONS_LISTEN", service.to_uppercase()), address.to_string());
    }
    // Only defaults: the user can set these.
    for (name, value) in [("RUST_LOG", "info"), ("HOPLINE_LOG_FORMAT", "text")] {
        if std::env::var_os(name).is_none() {
            variables.insert(name.to_owned(), value.to_owned());
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_wildcard_listener_is_loopback() {
        assert_eq!(url("0.0.0.0:8080".parse().unwrap()), "http://127.0.0.1:8080");
        assert_eq!(url("[::]:8080".parse().unwrap()), "http://[::1]:8080");
        assert_eq!(url("10.0.0.1:8080".parse().unwrap()), "http://10.0.0.1:8080");
    }

    #[test]
    fn the_variables_have_the_addresses_and_the_spool() {
        let addresses = Addresses {
            api: "127.0.0.1:1".parse().unwrap(),
            edge: "127.0.0.1:2".parse().unwrap(),
            operations: [("ingest", "127.0.0.1:3".parse().unwrap())].into(),
        };
        let secrets = Secrets::generate().unwrap();
        let spool = Path::new("/clone/.dev/data/spool");
        let variables = variables([("KAFKA_BROKERS", "k:9".to_owned())], &addresses, &secrets, spool);
        assert_eq!(variables["HOPLINE_API_LISTEN"], "127.0.0.1:1");
        assert_eq!(variables["HOPLINE_PUBLIC_URL"], "http://127.0.0.1:2");
        assert_eq!(variables["HOPLINE_INGEST_OPERATIONS_LISTEN"], "127.0.0.1:3");
        assert_eq!(variables["KAFKA_BROKERS"], "k:9");
        assert_eq!(variables["HOPLINE_SPOOL_DIR"], "/clone/.dev/data/spool");
    }
}
