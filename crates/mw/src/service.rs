//! A running `mw` as the commands reach it: `--url` and `--token`.

use anyhow::{Context, Result, bail};
use mw_operate::http_client;
use serde_json::Value;

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "A running service")]
pub(crate) struct ServiceArgs {
    /// Ask this running service instead of its storage, such as `http://127.0.0.1:8080`
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// The token of the service, of role operator (or auditor, for what changes nothing)
    #[arg(long, value_name = "TOKEN", requires = "url")]
    token: Option<String>,
}

/// A service that was named.
#[derive(Debug)]
pub(crate) struct Service {
    url: String,
    authorization: Option<String>,
}

impl ServiceArgs {
    pub(crate) fn of_url(&self) -> Option<Service> {
        let url = self.url.as_ref()?;
        let authorization = self.token.as_ref().map(|token| format!("Bearer {token}"));
        Some(Service { url: url.trim_end_matches('/').to_owned(), authorization })
    }
}

impl Service {
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.send("GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.send("POST", path, Some(body.to_string().into_bytes())).await
    }

    async fn send(&self, method: &str, path: &str, body: Option<Vec<u8>>) -> Result<Value> {
        let url = format!("{}{path}", self.url);
        let method = method.parse().context("name an HTTP method")?;
        let response = http_client::send(method, &url, self.authorization.as_deref(), body).await?;
        let reply: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        if !response.status.is_success() {
            let detail = reply.get("detail").and_then(Value::as_str).unwrap_or("no reason given");
            bail!("call {url}: {}: {detail}", response.status);
        }
        Ok(reply)
    }
}

/// The query string of the parameters that have a value; empty without any.
pub(crate) fn query(parameters: &[(&str, Option<&str>)]) -> String {
    let mut query = String::new();
    for (name, value) in parameters.iter().filter_map(|(name, value)| value.map(|value| (name, value))) {
        query.push(if query.is_empty() { '?' } else { '&' });
        query.push_str(name);
        query.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                query.push(char::from(byte));
            } else {
                query.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    query
}

fn digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap_or('0').to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_percent_encoded() {
        assert_eq!(query(&[]), "");
        assert_eq!(query(&[("table", None), ("key", Some("a b/ж"))]), "?key=a%20b%2F%D0%B6");
        assert_eq!(query(&[("by", Some("rate")), ("key", Some("u-1"))]), "?by=rate&key=u-1");
    }
}
