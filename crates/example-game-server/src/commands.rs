//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use base::Clock;
use clap::Parser;
use example_game_server::duel::Rules;
use example_game_server::results::Journal;
use example_game_server::{GameServer, Options, ServiceApi};
use tokio::net::TcpListener;
use url::Url;
use webhook::Verifier;

/// The variable with the secret of the assigner, as in `matchmaking.assigners.NAME.secret`.
const SECRET: &str = "GAME_SERVER_SECRET";
/// The variable with the token for the service API.
const TOKEN: &str = "GAME_SERVER_TOKEN";

/// Run the example game server: a reaction duel for two players
///
/// Set GAME_SERVER_SECRET to the secret of the assigner (`whsec_…`), and GAME_SERVER_TOKEN to a token for the service API with the rights
/// read, entitlements and notifications: `playhouse token game-server --may read,entitlements,notifications` creates one.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// The address to listen on, for Playhouse and for players
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7777")]
    listen: SocketAddr,
    /// The address that players use, if it is another one: https://duel.example.com
    #[arg(long, value_name = "URL")]
    public_url: Option<Url>,
    /// The address of the service API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    service_api: Url,
    /// The folder for results that are not reported yet
    #[arg(long, value_name = "FOLDER", default_value = "game-results")]
    results: PathBuf,
    /// How many matches are played at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    max_rooms: usize,
}

pub(crate) async fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let Arguments { listen, public_url, service_api, results, max_rooms } = arguments;
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let verifier =
        Verifier::new([variable(SECRET)?.as_str()]).map_err(|error| format!("{SECRET}: {error}"))?;
    let server = GameServer::new(Options {
        public_url: public_url.map_or_else(|| Url::parse(&format!("http://{address}")), Ok)?,
        verifier,
        api: ServiceApi::new(service_api, variable(TOKEN)?)?,
        journal: Journal::open(results)?,
        rules: Rules::default(),
        max_rooms,
        clock: Clock::system(),
        random: fastrand::Rng::new(),
    });
    println!("matchmaking.assigners.NAME.url = \"{}\"", GameServer::allocate_url(address));
    server.run(listener, async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("set {name}; --help explains it"))
}
