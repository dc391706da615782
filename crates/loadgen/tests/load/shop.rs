//! The real server, in this process, on the embedded engine.

use std::net::SocketAddr;
use std::sync::Arc;

use mw_domain::Currency;
use mw_domain::carts::CartLifetime;
use mw_domain::sessions::SessionLifetime;
use mw_http::prometheus::Registry;
use mw_http::{Api, Role, Server, ServerSettings, Token, Tokens};
use mw_shop::{Settings, Shop, SystemClock};
use mw_store_embedded::{EmbeddedStore, Options};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const DAY_MS: i64 = 86_400_000;

fn settings() -> Settings {
    Settings {
        currency: Currency::parse("RUB").unwrap(),
        carts: CartLifetime { user_ms: 30 * DAY_MS, guest_ms: DAY_MS },
        sessions: SessionLifetime { ttl_ms: DAY_MS },
        payment_window_ms: 1_800_000,
        reservation_ttl_seconds: 900,
    }
}

pub(crate) struct RealShop {
    pub(crate) url: String,
    _runtime: Runtime,
    _folder: TempDir,
}

impl RealShop {
    pub(crate) fn open() -> Self {
        Self::with_tokens(&Tokens::default())
    }

    pub(crate) fn guarded(role: Role, secret: &str) -> Self {
        let token = Token { role, secret: secret.to_owned(), rate_limit: None };
        Self::with_tokens(&Tokens(vec![token]))
    }

    fn with_tokens(tokens: &Tokens) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings();
        let options = Options { min_free_bytes: 0, ..Options::new(folder.path(), settings.currency) };
        let store = Arc::new(EmbeddedStore::open(options).unwrap());
        let shop = Shop::new(store, Arc::new(SystemClock), settings);
        let limits = ServerSettings::default();
        let api = Api::new(shop, &limits, tokens, Registry::new()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let server = runtime.block_on(Server::bind(any, limits, api)).unwrap();
        let url = format!("http://{}", server.address());
        runtime.spawn(server.run(std::future::pending()));
        Self { url, _runtime: runtime, _folder: folder }
    }
}
