//! TLS: an authority with a certificate for the servers of this machine, clients that trust it, and what decrypts in
//! front of a server that cannot.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{Cause, Error, private};

/// The name in the certificate, which all servers have.
pub(crate) const SERVERS: &str = "hopline-servers";

/// What the certificate is for: clients' address, that of replicas of ClickHouse, and the name of both.
const ADDRESSES: [&str; 3] = ["127.0.0.1", "127.0.0.2", "localhost"];

/// The pause after a connection could not be accepted, such as without file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The files of an authority, each in PEM.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The servers' private key and its certificate.
    pub server: PathBuf,
}

impl Tls {
    /// Returns the authority of a folder, which the first call creates. Its key is not kept, so that it signs nothing
    /// else.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn in_folder(folder: &Path) -> Result<Self, Error> {
        let tls = Self { ca: folder.join("ca.pem"), server: folder.join("server.pem") };
        // Written last.
        if !tls.ca.exists() {
            let issued = issue().map_err(|error| Error::Invalid(format!("no certificate: {error}")))?;
            std::fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
            private::write(&tls.server, &issued.server)?;
            private::write(&tls.ca, &issued.ca)?;
        }
        Ok(tls)
    }

    /// Decrypts connections to a listener and passes them on to a server.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn decrypt(
        &self,
        listener: TcpListener,
        server: SocketAddr,
    ) -> Result<impl Future<Output = Infallible> + use<>, Cause> {
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(self.certificate()?, PrivateKeyDer::from_pem_file(&self.server)?)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(async move {
            loop {
                match listener.accept().await {
                    Ok((client, _)) => drop(tokio::spawn(pass_on(acceptor.clone(), client, server))),
                    Err(_) => sleep(PAUSE).await,
                }
            }
        })
    }

    /// Connects to a server of this machine, with the certificate of its servers.
    pub(crate) async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, Cause> {
        let mut trusted = RootCertStore::empty();
        trusted.add(CertificateDer::from_pem_file(&self.ca)?)?;
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(trusted)
            .with_client_auth_cert(self.certificate()?, PrivateKeyDer::from_pem_file(&self.server)?)?;
        let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
        Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
    }

    fn certificate(&self) -> Result<Vec<CertificateDer<'static>>, Cause> {
        Ok(vec![CertificateDer::from_pem_file(&self.server)?])
    }
}

/// Decrypts one connection until both sides have ended it.
async fn pass_on(acceptor: TlsAcceptor, client: TcpStream, server: SocketAddr) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut client = acceptor.accept(client).await?;
    let mut server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// The contents of the files.
struct Issued {
    ca: String,
    server: String,
}

fn issue() -> Result<Issued, rcgen::Error> {
    let mut params = CertificateParams::new([])?;
    params.distinguished_name.push(DnType::CommonName, "Hopline's development stack");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca = params.self_signed(&key)?.pem();
    let mut own = CertificateParams::new(ADDRESSES.map(str::to_owned))?;
    own.distinguished_name.push(DnType::CommonName, SERVERS);
    let own_key = KeyPair::generate()?;
    let own = own.signed_by(&own_key, &Issuer::new(params, key))?;
    Ok(Issued { ca, server: own_key.serialize_pem() + &own.pem() })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn an_authority_is_created_once_and_its_key_is_its_owners() {
        let scratch = Scratch::new("tls").unwrap();
        let tls = Tls::in_folder(scratch.path()).unwrap();
        let first = fs::read(&tls.server).unwrap();
        Tls::in_folder(scratch.path()).unwrap();
        assert_eq!(fs::read(&tls.server).unwrap(), first);
        assert_eq!(fs::metadata(&tls.server).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
