//! A data folder that is made once per server version and copied for each server.
//!
//! Making one takes seconds, a copy takes milliseconds.

use std::fs;
use std::path::{Path, PathBuf};

use super::engine::{Engine, FIRST_WORDS, Flavour};
use crate::folder::{Folder, copy, target};
use crate::{Error, cache};

/// To be raised when the options change with which the folder is made.
const EDITION: u32 = 1;

/// The template for the server, made now if this is the first time. Blocks.
pub(super) fn ready(engine: &Engine) -> Result<PathBuf, Error> {
    ready_in(&target().join("testkit"), engine)
}

fn ready_in(home: &Path, engine: &Engine) -> Result<PathBuf, Error> {
    cache::ready_in(home, &name(engine), |folder| {
        let made = make(engine)?;
        copy(&made.path().join("data"), folder)
            .map_err(|error| Error::failed("the template of the data folder", error))
    })
}

fn name(engine: &Engine) -> String {
    let flavour = match engine.flavour {
        Flavour::Mariadb => "mariadb",
        Flavour::Mysql => "mysql",
    };
    // "mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))": the word after "Ver". No dots: they would
    // be taken for an extension.
    let version = engine.version.split_whitespace().skip_while(|word| *word != "Ver").nth(1);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let version: String = version.unwrap_or("unknown").chars().map(plain).collect();
    format!("{flavour}-{version}-edition{EDITION}")
}

/// Makes a data folder, in memory where there is room: many small syncs are slow on a disk.
fn make(engine: &Engine) -> Result<Folder, Error> {
    let failed = |why: String| Error::failed("making a data folder", why);
    let folder = Folder::fresh().map_err(|error| failed(error.to_string()))?;
    let data = folder.path().join("data");
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch).map_err(|error| failed(error.to_string()))?;
    let first_words = folder.path().join("first.sql");
    fs::write(&first_words, FIRST_WORDS).map_err(|error| failed(error.to_string()))?;
    let installer = engine.installer(&data, &scratch, &first_words);
    cache::run("making a data folder", &installer, &folder.path().join("log"))?;
    // MySQL's identity of a server; each copy gets its own.
    let _ = fs::remove_file(data.join("auto.cnf"));
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn ten_at_once_make_one_template() {
        let engine = crate::need!(Engine::find(Flavour::Mariadb));
        let home = Folder::fresh().unwrap();
        let template = home.path().join(name(&engine));
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    assert_eq!(ready_in(home.path(), &engine).unwrap(), template);
                    // Complete from the first moment on.
                    assert!(template.join("ibdata1").exists() && template.join("mysql").is_dir());
                });
            }
        });
        let mut left: Vec<_> =
            fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        let name = name(&engine);
        assert_eq!(left, [name.clone().into(), std::ffi::OsString::from(format!("{name}.lock"))]);
    }

    #[test]
    fn what_a_crash_left_behind_is_removed() {
        let engine = crate::need!(Engine::find(Flavour::Mariadb));
        let home = Folder::fresh().unwrap();
        let unfinished = home.path().join(name(&engine)).with_extension("unfinished");
        fs::create_dir_all(unfinished.join("testkit_1/mysql")).unwrap();
        ready_in(home.path(), &engine).unwrap();
        assert!(!unfinished.exists());
    }
}
