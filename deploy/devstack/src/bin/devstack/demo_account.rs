//! The demo account, and the text that `up` prints when everything is ready.

use std::process::Command;

use anyhow::{Context as _, ensure};
use devstack::process::run;
use devstack::{Cause, http, random};
use schemas::grants::User;
use serde_json::Value;

use crate::environment::Services;
use crate::folder::Folder;
use crate::state::{DEMO, DemoAccount};
use crate::status::Status;

/// A browser's User-Agent: command-line clients count as bots.
const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

/// Returns the last line of [`welcome`].
pub(crate) fn final_line(in_background: bool) -> &'static str {
    if in_background {
        "Running in the background. `./dev logs -f` follows the logs; `./dev down` stops it and keeps the data."
    } else {
        "Ctrl-C or `./dev down` stops it and keeps the data."
    }
}

/// Returns the demo account of an earlier start if the API still knows its key, or else creates one.
pub(crate) async fn ensure(folder: &Folder, services: &Services, api: &str) -> anyhow::Result<DemoAccount> {
    if let Some(demo) = folder.read::<DemoAccount>(DEMO)? {
        // The database may have been wiped, or be another one than the last time.
        let known = is_known(api, &demo.api_key).await.map_err(anyhow::Error::from_boxed);
        if known.context("could not ask the API for the demo account")? {
            // It depends on the keys, which may have changed.
            return Ok(DemoAccount { setup_token: setup_token(services).await?, ..demo });
        }
    }
    let arguments = ["create-account", "--name", "Demo", "--plan", "business", "--json"];
    let [account_id, workspace_id] = admin(services, &arguments, ["account_id", "workspace_id"]).await?;
    let arguments = ["create-key", "--workspace", &workspace_id, "--scope", "read,write", "--json"];
    let [api_key] = admin(services, &arguments, ["key"]).await?;
    let [edge_token] = admin(services, &["create-edge-token", "--json"], ["edge_token"]).await?;
    let setup_token = setup_token(services).await?;
    let demo = DemoAccount { account_id, workspace_id, api_key, edge_token, setup_token, history: None };
    folder.write(DEMO, &demo)?;
    Ok(demo)
}

async fn setup_token(services: &Services) -> anyhow::Result<String> {
    let [token] = admin(services, &["setup-token", "--json"], ["setup_token"]).await?;
    Ok(token)
}

/// Returns whether the dashboard has no owner yet; false when the API does not answer.
pub(crate) async fn is_setup_needed(api: &str) -> bool {
    let setup = async {
        let answer = http::client()?.get(format!("{api}/app/api/setup")).send().await?;
        let text = http::accepted(answer).await?;
        Ok::<Value, Cause>(serde_json::from_str(&text)?)
    };
    setup.await.is_ok_and(|setup| setup["needed"] == true)
}

async fn is_known(api: &str, key: &str) -> Result<bool, Cause> {
    let answer = http::client()?.get(format!("{api}/api/links?limit=1")).bearer_auth(key).send().await?;
    match answer.status().as_u16() {
        401 => Ok(false),
        _ => http::accepted(answer).await.map(|_| true),
    }
}

/// Runs `api admin` and returns these fields of its JSON output.
async fn admin<const N: usize>(
    services: &Services,
    arguments: &[&str],
    fields: [&str; N],
) -> anyhow::Result<[String; N]> {
    let mut command = Command::new(services.program("api")?);
    command.arg("admin").args(arguments).envs(services.environment(User::Api));
    let what = format!("`api admin {}`", arguments.join(" "));
    let output: Value = serde_json::from_slice(&run(&what, command).await?).unwrap_or_default();
    let values = fields.map(|field| output[field].as_str().unwrap_or_default().to_owned());
    // The error does not contain the output, which has a key in it.
    ensure!(values.iter().all(|value| !value.is_empty()), "{what} printed unexpected output");
    Ok(values)
}

/// Returns the addresses, the key, and commands to try.
pub(crate) fn welcome(status: &Status, final_line: &str) -> anyhow::Result<String> {
    let known = |field: &Option<String>| field.clone().context("the stack is not complete yet");
    let (api, edge, key) = (known(&status.api)?, known(&status.edge)?, known(&status.api_key)?);
    let dashboard = known(&status.dashboard_address())?;
    let hint = if status.setup_token.is_some() { "  (signs you up)" } else { "" };
    // A new slug for each start, because the previous one may exist.
    let slug = format!("hello-{}", random::hex::<2>()?);
    let body = format!(r#"{{"name":"Hello","slug":"{slug}","destination":"https://example.com/"}}"#);
    Ok(format!(
        "
  Dashboard  {dashboard}{hint}
  API        {api}
  Edge       {edge}
  API key    {key}

Create a link, click it as a browser would, and read its counts (`./dev demo` fills the dashboard with two months of \
clicks):

  ID=$(curl -s {api}/api/links -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{body}' | tee \
  /dev/stderr | grep -o 'lnk_[0-9A-Za-z_-]*' | head -n 1)
  sleep 1; curl -i -A '{BROWSER}' {edge}/{slug}
  sleep 1; curl -s {api}/api/links/$ID -H 'Authorization: Bearer {key}'

{final_line}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Topology;

    #[test]
    fn the_welcome_has_the_addresses_the_key_and_a_browser() {
        let mut status = Status::not_running(Topology::Single, None, None);
        status.api = Some("http://127.0.0.1:8080".to_owned());
        status.edge = Some("http://127.0.0.1:8081".to_owned());
        status.api_key = Some("hop_live_key".to_owned());
        status.dashboard = Some("http://127.0.0.1:8080/app/".to_owned());
        let text = welcome(&status, final_line(false)).unwrap();
        assert!(
            text.contains("curl -s http://127.0.0.1:8080/api/links -H 'Authorization: Bearer hop_live_key'")
        );
        assert!(text.contains(&format!("-A '{BROWSER}' http://127.0.0.1:8081/hello-")));
        assert!(text.contains("  Dashboard  http://127.0.0.1:8080/app/\n"), "{text}");
        status.setup_token = Some("0123".to_owned());
        let text = welcome(&status, final_line(true)).unwrap();
        assert!(text.contains("http://127.0.0.1:8080/app/#setup_token=0123  (signs you up)\n"), "{text}");
        assert!(!text.contains("Ctrl-C"), "{text}");
    }
}
