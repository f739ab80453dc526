//! A webhook receiver that accepts everything, for the endpoint that `demo` creates.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use devstack::ports;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Listens on `preferred` when it is free, or else on another port, and returns the port.
pub(crate) async fn serve(preferred: u16) -> anyhow::Result<u16> {
    let port = ports::prefer(preferred)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.context("the webhook receiver")?;
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            // Fails when the sender is gone.
            tokio::spawn(async move { accept(connection).await.ok() });
        }
    });
    Ok(port)
}

/// Reads one request and answers with 204.
async fn accept(mut connection: TcpStream) -> std::io::Result<()> {
    let (reader, mut writer) = connection.split();
    let mut reader = BufReader::new(reader);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).await? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    tokio::io::copy(&mut reader.take(length), &mut tokio::io::sink()).await?;
    writer.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await?;
    writer.shutdown().await
}

#[cfg(test)]
mod tests {
    use devstack::http;

    #[tokio::test]
    async fn every_request_is_accepted() {
        let port = super::serve(0).await.unwrap();
        for body in ["", "{\"event\":\"endpoint.test\"}"] {
            let url = format!("http://127.0.0.1:{port}/any/path");
            let answer = http::client().unwrap().post(url).body(body).send().await.unwrap();
            assert_eq!(answer.status().as_u16(), 204);
        }
    }
}
