//! The template of the data folder, needed by many processes and made by one.

use std::fs;
use std::path::{Path, PathBuf};

use futures::future::join_all;
use testkit::{Folder, OutputStream, SqlServer, eventually, need};

use crate::DEADLINE;
use crate::roles::{again, role};

/// Creates a build folder without a template, with a copy of this test binary that uses it.
fn fresh_build_folder() -> (Folder, PathBuf) {
    let folder = Folder::on_disk().unwrap();
    fs::write(folder.path().join("CACHEDIR.TAG"), "").unwrap();
    let exe = folder.path().join("tests");
    fs::hard_link(std::env::current_exe().unwrap(), &exe).unwrap();
    (folder, exe)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

async fn use_a_server() {
    let server = SqlServer::private().await.unwrap();
    println!("made {}", server.database().await.name());
}

#[tokio::test]
async fn ten_processes_make_one_template() {
    if role().is_some() {
        return use_a_server().await;
    }
    need!(SqlServer::mariadb().await);
    let (folder, exe) = fresh_build_folder();
    let processes: Vec<_> = (0..10).map(|_| again!("one of ten", exe.clone()).start().unwrap()).collect();
    let ends = join_all(processes.iter().map(|process| process.wait(DEADLINE * 3))).await;
    for (process, end) in processes.iter().zip(ends) {
        assert!(
            end.success(),
            "{}{}",
            process.text(OutputStream::Stdout),
            process.text(OutputStream::Stderr)
        );
    }
    let mut names = names_in(&folder.path().join("testkit"));
    names.sort_by_key(String::len);
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[0].starts_with("mariadb-"), "{names:?}");
    assert_eq!(names[1], format!("{}.lock", names[0]));
}

/// A process is killed while it makes the template, at several moments. The next one starts over.
#[tokio::test]
async fn killed_maker_leaves_no_partial_template() {
    if role().is_some() {
        return use_a_server().await;
    }
    need!(SqlServer::mariadb().await);
    let (folder, exe) = fresh_build_folder();
    let home = folder.path().join("testkit");
    let has = |end: &str| names_in(&home).iter().any(|name| name.ends_with(end));
    for moment in [".lock", ".unfinished"] {
        let maker = again!("killed", exe.clone()).start().unwrap();
        eventually("the maker at work", DEADLINE, || async { has(moment) }).await;
        maker.kill();
        maker.wait(DEADLINE).await;
        // The maker may have finished before the kill. The test accepts that.
    }
    let maker = again!("not killed", exe).start().unwrap();
    let end = maker.wait(DEADLINE).await;
    assert!(end.success(), "{}{}", maker.text(OutputStream::Stdout), maker.text(OutputStream::Stderr));
    assert!(!has(".unfinished"), "{:?}", names_in(&home));
}
