//! The environment variables of the four services.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use devstack::{Error, ports};
use schemas::grants::User;
use serde::{Deserialize, Serialize};

use crate::folder::Folder;
use crate::members::Member;
use crate::state::Secrets;

/// The services' programs and their common environment.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Services {
    /// Each service's program, by name.
    pub(crate) programs: BTreeMap<String, PathBuf>,
    /// Variables in addition to the current environment.
    pub(crate) variables: BTreeMap<String, String>,
    /// Those with which each user of the engines reaches them, by its name.
    pub(crate) engines: BTreeMap<String, BTreeMap<String, String>>,
}

impl Services {
    /// Returns one program, found beside this one, without an environment.
    pub(crate) fn beside_this_program(name: &str) -> Option<Self> {
        let path = std::env::current_exe().ok()?.with_file_name(name);
        let programs = [(name.to_owned(), path.clone())].into();
        let (variables, engines) = Default::default();
        path.is_file().then_some(Self { programs, variables, engines })
    }

    /// Returns the variables of a program that a user of the engines runs.
    pub(crate) fn environment(&self, user: User) -> BTreeMap<String, String> {
        let engines = self.engines.get(user.name()).cloned().unwrap_or_default();
        self.variables.clone().into_iter().chain(engines).collect()
    }

    /// Returns whether the programs are optimised.
    pub(crate) fn are_released(&self) -> bool {
        self.programs.values().any(|path| path.parent().is_some_and(|folder| folder.ends_with("release")))
    }

    pub(crate) fn program(&self, name: &str) -> anyhow::Result<&Path> {
        self.programs.get(name).map(PathBuf::as_path).with_context(|| format!("there is no program {name}"))
    }
}

/// A server of a service: what it does not share with the others.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    /// Such as `ingest` or `ingest-2`.
    pub(crate) name: String,
    pub(crate) service: &'static str,
    pub(crate) operations: SocketAddr,
    /// The address for users; only an API and an edge have one.
    pub(crate) public: Option<SocketAddr>,
    /// The folder of an edge's clicks, which also contains its snapshot of the links.
    spool: Option<PathBuf>,
}

impl Instance {
    /// Chooses the remembered ports, or the usual ones, when they are free, or else others, for all services of a
    /// stack.
    pub(crate) fn choose(
        members: &[Member],
        listen: IpAddr,
        folder: &Folder,
        remembered: &BTreeMap<String, u16>,
    ) -> Result<Vec<Self>, Error> {
        let mut instances: Vec<Self> = Vec::new();
        for member in members.iter().filter(|member| member.is_service()) {
            let (operations, public) = match member.group {
                "ingest" => (9101, Some(8081)),
                "processor" => (9102, None),
                "api" => (9103, Some(8080)),
                _ => (9104, None),
            };
            let earlier = instances.iter().filter(|other| other.service == member.group).count();
            let usual = |port: u16| port + 100 * u16::try_from(earlier).unwrap_or(0);
            let prefer =
                |key: &str, port: u16| ports::prefer(remembered.get(key).copied().unwrap_or(usual(port)));
            let public = public.map(|port| prefer(&member.name, port)).transpose()?;
            let public = public.map(|port| SocketAddr::new(listen, port));
            let operations = prefer(&operations_key(&member.name), operations)?;
            let is_edge = member.group == "ingest";
            instances.push(Self {
                name: member.name.clone(),
                service: member.group,
                operations: SocketAddr::from(([127, 0, 0, 1], operations)),
                public,
                spool: is_edge.then(|| folder.data(&member.name.replacen("ingest", "spool", 1))),
            });
        }
        Ok(instances)
    }

    /// Returns the ports to remember.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (String, u16)> {
        let public = self.public.map(|address| (self.name.clone(), address.port()));
        public.into_iter().chain([(operations_key(&self.name), self.operations.port())])
    }

    /// Returns the variables of this server alone.
    pub(crate) fn variables(&self) -> BTreeMap<String, String> {
        let service = self.service.to_uppercase();
        let operations = (format!("HOPLINE_{service}_OPERATIONS_LISTEN"), self.operations.to_string());
        let listen = if self.service == "api" { "HOPLINE_API_LISTEN" } else { "HOPLINE_EDGE_LISTEN" };
        let public = self.public.map(|address| (listen.to_owned(), address.to_string()));
        let spool =
            self.spool.as_ref().map(|spool| ("HOPLINE_SPOOL_DIR".to_owned(), spool.display().to_string()));
        [operations].into_iter().chain(public).chain(spool).collect()
    }
}

/// Returns the name of a server's operations address among the remembered ports.
fn operations_key(name: &str) -> String {
    format!("{name} operations")
}

/// Returns the URLs that users reach a service at.
pub(crate) fn public_urls(instances: &[Instance], service: &str) -> Vec<String> {
    let of_service = instances.iter().filter(|instance| instance.service == service);
    of_service.filter_map(|instance| instance.public).map(url).collect()
}

/// Returns the URL of a listener, with the loopback address for one on all addresses.
pub(crate) fn url(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(all) if all.ip().is_unspecified() => format!("http://127.0.0.1:{}", all.port()),
        SocketAddr::V6(all) if all.ip().is_unspecified() => format!("http://[::1]:{}", all.port()),
        other => format!("http://{other}"),
    }
}

/// Returns the services' common environment variables, and those of each service's first server.
pub(crate) fn variables(instances: &[Instance], secrets: &Secrets) -> BTreeMap<String, String> {
    let loopback = "127.0.0.0/8,::1/128";
    let mut variables: BTreeMap<String, String> = [
        // Not for production: trusts clients' headers with addresses, and allows webhooks to this machine.
        ("HOPLINE_TRUSTED_PROXIES", loopback.to_owned()),
        ("HOPLINE_WEBHOOK_ALLOW", loopback.to_owned()),
        ("HOPLINE_CLICK_ID_KEYS", secrets.click_id_keys.clone()),
        ("HOPLINE_VISITOR_KEY", secrets.visitor_key.clone()),
        ("HOPLINE_SECRET_KEYS", secrets.secret_keys.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if let Some(edge) = public_urls(instances, "ingest").into_iter().next() {
        variables.insert("HOPLINE_PUBLIC_URL".to_owned(), edge);
    }
    // The first server's variables replace those of later ones.
    variables.extend(instances.iter().rev().flat_map(Instance::variables));
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
    use devstack::scratch::Scratch;

    use super::*;
    use crate::members::Topology;

    #[test]
    fn the_url_of_a_wildcard_listener_is_loopback() {
        assert_eq!(url("0.0.0.0:8080".parse().unwrap()), "http://127.0.0.1:8080");
        assert_eq!(url("[::]:8080".parse().unwrap()), "http://[::1]:8080");
        assert_eq!(url("10.0.0.1:8080".parse().unwrap()), "http://10.0.0.1:8080");
    }

    fn instances(topology: Topology, folder: &Folder) -> Vec<Instance> {
        Instance::choose(&topology.members(), [127, 0, 0, 1].into(), folder, &BTreeMap::new()).unwrap()
    }

    #[test]
    fn the_variables_have_the_addresses_and_the_spool() {
        let scratch = Scratch::new("environment").unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        let instances = instances(Topology::Single, &folder);
        let secrets = Secrets::generate().unwrap();
        let variables = variables(&instances, &secrets);
        let [ingest, _, api, _] = &instances[..] else { panic!("{instances:?}") };
        assert_eq!(variables["HOPLINE_API_LISTEN"], api.public.unwrap().to_string());
        assert_eq!(variables["HOPLINE_EDGE_LISTEN"], ingest.public.unwrap().to_string());
        assert_eq!(variables["HOPLINE_PUBLIC_URL"], url(ingest.public.unwrap()));
        assert_eq!(variables["HOPLINE_INGEST_OPERATIONS_LISTEN"], ingest.operations.to_string());
        assert!(variables["HOPLINE_SPOOL_DIR"].ends_with("/.dev/data/spool"), "{variables:?}");
    }

    #[test]
    fn a_remembered_port_is_chosen_again() {
        let scratch = Scratch::new("environment").unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        let keys = instances(Topology::Cluster, &folder);
        // Not the usual ports, which other tests choose.
        let free = |(key, _)| (key, ports::free().unwrap());
        let remembered: BTreeMap<String, u16> = keys.iter().flat_map(Instance::ports).map(free).collect();
        // As after the end of the process that has reserved them.
        remembered.values().for_each(|port| ports::release(*port));
        let members = Topology::Cluster.members();
        let again = Instance::choose(&members, [127, 0, 0, 1].into(), &folder, &remembered).unwrap();
        assert_eq!(again.iter().flat_map(Instance::ports).collect::<BTreeMap<_, _>>(), remembered);
    }

    #[test]
    fn the_servers_of_a_service_share_no_address_and_no_folder() {
        let scratch = Scratch::new("environment").unwrap();
        let folder = Folder::open(scratch.path()).unwrap().with(Topology::Cluster);
        let instances = instances(Topology::Cluster, &folder);
        let [first, second, ..] = &instances[..] else { panic!("{instances:?}") };
        assert_eq!((first.name.as_str(), second.name.as_str()), ("ingest-1", "ingest-2"));
        let (one, other) = (first.variables(), second.variables());
        assert!(one.keys().eq(other.keys()));
        assert!(one.iter().all(|(name, value)| other[name] != *value), "{one:?} {other:?}");
        let variables = variables(&instances, &Secrets::generate().unwrap());
        assert_eq!(variables["HOPLINE_SPOOL_DIR"], one["HOPLINE_SPOOL_DIR"]);
        assert_eq!(public_urls(&instances, "api").len(), 2);
    }
}
