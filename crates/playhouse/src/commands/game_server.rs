//! The game server of `playhouse dev`: the example `example-game-server`, in this process, so that the lobby at `/play` has a game to play.
//!
//! It is a program beside Playhouse in every other respect: it listens on an address of its own, is requested by signed webhooks, and
//! calls the service API with a token and rights of its own.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use ::config::Layers;
use anyhow::Context;
use base::Clock;
use example_game_server::duel::Rules;
use example_game_server::results::Journal;
use example_game_server::{GameServer, Options, ServiceApi};
use http_server::{ConfiguredCaller, Right, TokenHash};
use runtime::{Drain, Process};
use url::Url;
use uuid::Uuid;
use webhook::{Secrets, Verifier};

use super::token::new_token;
use crate::Settings;
use crate::listeners::{Addresses, Listener};
use crate::services::SERVICES;

/// Its name as a caller of the service API, and as a loop of the process.
const NAME: &str = "game-server";
/// What it may do: look up names and accounts, grant trophies, notify players.
const RIGHTS: [&str; 3] = ["read", "entitlements", "notifications"];
/// More matches than a laptop has players, and enough for `playhouse simulate`.
const MAX_ROOMS: usize = 20_000;

/// A bound game server that does not run yet.
#[derive(Debug)]
pub(super) struct Duels {
    socket: TcpListener,
    address: SocketAddr,
    /// Signs the webhooks of matchmaking.
    secret: String,
}

impl Duels {
    pub(super) fn bind() -> std::io::Result<Self> {
        let socket = TcpListener::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        // 64 hexadecimal digits are base64, too.
        let secret = format!("whsec_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        Ok(Self { address: socket.local_addr()?, socket, secret })
    }

    /// Turns the lobby on, and allows it to connect to this game server.
    pub(super) fn add_to(&self, layers: Layers) -> Layers {
        let origin = format!("http://{}", self.address);
        layers
            .with_default("gateway.lobby.enabled", "true")
            .with_default("gateway.lobby.game_servers", &origin)
    }

    /// Lets matchmaking request its servers here, unless profiles are configured.
    pub(super) fn add_to_matchmaking(&self, settings: &mut Settings) -> anyhow::Result<()> {
        let config: matchmaking::Config = settings.shared.get::<matchmaking::Config>().clone();
        let url = Url::parse(&GameServer::allocate_url(self.address))?;
        settings.shared.put(config.or_demo(url, Secrets::new([self.secret.as_str()])?)?);
        Ok(())
    }

    /// Adds the game server to the callers of the service API, and returns its token.
    pub(super) fn add_caller(&self, settings: &mut Settings) -> String {
        let token = new_token();
        let may: Vec<Right> =
            SERVICES.rights().into_iter().filter(|right| RIGHTS.contains(&right.word())).collect();
        let caller = ConfiguredCaller { token_hash: TokenHash::of(&token), may };
        settings.callers.insert(NAME.to_owned(), caller);
        token
    }

    /// Starts the game server in this process. `results` is the folder of results that are not reported yet.
    pub(super) fn start(
        self,
        process: &mut Process,
        addresses: &Addresses,
        token: String,
        results: PathBuf,
    ) -> anyhow::Result<()> {
        let service_api =
            addresses.url(Listener::ServiceApi).context("the game server needs the service API")?;
        let journal = Journal::open(&results);
        let server = GameServer::new(Options {
            public_url: Url::parse(&format!("http://{}", self.address))?,
            verifier: Verifier::new([self.secret.as_str()])?,
            api: ServiceApi::new(Url::parse(&service_api)?, token)?,
            journal: journal.with_context(|| format!("cannot write to {}", results.display()))?,
            rules: Rules::default(),
            max_rooms: MAX_ROOMS,
            clock: Clock::system(),
            random: fastrand::Rng::new(),
        });
        process.supervise(NAME, move |drain: Drain| {
            let (server, socket) = (server.clone(), self.socket.try_clone());
            async move {
                let socket = tokio::net::TcpListener::from_std(socket?)?;
                server.run(socket, async move { drain.requested().await }).await?;
                Ok(())
            }
        });
        Ok(())
    }
}
