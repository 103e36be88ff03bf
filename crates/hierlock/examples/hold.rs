//! Holds a lock until it is interrupted or lost: `hold mysql://root@127.0.0.1/app 1000 user/account/resource`
//!
//! Two of them in two terminals show what locks do: the second waits until the first is stopped, in whatever way.

use std::time::Duration;

use hierlock::{Locks, Options, Target};

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "this is what it is run for")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, database, buckets, path] = &args[..] else {
        return Err("DATABASE BUCKETS USER[/ACCOUNT[/RESOURCE]]".into());
    };
    let target = match path.split('/').collect::<Vec<_>>()[..] {
        [user] => Target::user(user)?,
        [user, account] => Target::account(user, account)?,
        [user, account, resource] => Target::resource(user, account, resource)?,
        _ => return Err("too many slashes".into()),
    };
    let options =
        Options { buckets: buckets.parse()?, heartbeat: Duration::from_secs(1), ..Options::default() };
    let lock = Locks::mysql(database.parse()?, &options).await?.acquire(target).await?;
    println!("holding {target}");
    lock.lost().await;
    println!("lost {target}");
    Ok(())
}
