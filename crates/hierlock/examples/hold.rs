//! Holds a lock until it is interrupted or the lock is lost: `hold mysql://root@127.0.0.1/app 1000 user/account/resource`
//!
//! Run it in two terminals: the second waits until the first one exits or is killed.

use std::time::Duration;

use hierlock::{LockManager, Options, Target};

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "its output is the demonstration")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, database, buckets, path] = &args[..] else {
        return Err("usage: hold DATABASE BUCKETS USER[/ACCOUNT[/RESOURCE]]".into());
    };
    let target = match path.split('/').collect::<Vec<_>>()[..] {
        [user] => Target::user(user)?,
        [user, account] => Target::account(user, account)?,
        [user, account, resource] => Target::resource(user, account, resource)?,
        _ => return Err("too many slashes".into()),
    };
    let options =
        Options { buckets: buckets.parse()?, heartbeat: Duration::from_secs(1), ..Options::default() };
    let lock = LockManager::mysql(database.parse()?, &options).await?.acquire(target).await?;
    println!("holding {target}");
    lock.lost().await;
    println!("lost {target}");
    Ok(())
}
