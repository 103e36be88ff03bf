//! A template of the data folder, created once per server version and copied for each server.
//!
//! Creation takes seconds, a copy takes milliseconds.

use std::fs;
use std::path::{Path, PathBuf};

use super::server_program::{Flavour, INIT_SQL, ServerProgram};
use crate::folder::{Folder, copy, target_dir};
use crate::{Error, cache};

/// Increase it when the options of the creation change.
const EDITION: u32 = 1;

/// Returns the template for the server. Creates it on first use. Blocks.
pub(super) fn ready(program: &ServerProgram) -> Result<PathBuf, Error> {
    ready_in(&target_dir().join("testkit"), program)
}

fn ready_in(home: &Path, program: &ServerProgram) -> Result<PathBuf, Error> {
    cache::get_or_make_in(home, &name(program), |folder| {
        let made = make(program)?;
        copy(&made.path().join("data"), folder)
            .map_err(|error| Error::failed("the template of the data folder", error))
    })
}

fn name(program: &ServerProgram) -> String {
    let flavour = match program.flavour {
        Flavour::Mariadb => "mariadb",
        Flavour::Mysql => "mysql",
    };
    // "mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))": the word after "Ver". Dots are replaced, because they would
    // be taken for an extension.
    let version = program.version.split_whitespace().skip_while(|word| *word != "Ver").nth(1);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let version: String = version.unwrap_or("unknown").chars().map(plain).collect();
    format!("{flavour}-{version}-edition{EDITION}")
}

/// Creates a data folder, in memory if there is space, because it takes many small syncs.
fn make(program: &ServerProgram) -> Result<Folder, Error> {
    let failed = |why: String| Error::failed("making a data folder", why);
    let folder = Folder::fresh().map_err(|error| failed(error.to_string()))?;
    let data = folder.path().join("data");
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch).map_err(|error| failed(error.to_string()))?;
    let init_file = folder.path().join("first.sql");
    fs::write(&init_file, INIT_SQL).map_err(|error| failed(error.to_string()))?;
    let installer = program.installer(&data, &scratch, &init_file);
    cache::run("making a data folder", &installer, &folder.path().join("log"))?;
    // The server's UUID. MySQL generates a new one for each copy.
    let _ = fs::remove_file(data.join("auto.cnf"));
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn ten_concurrent_threads_make_one_template() {
        let program = crate::need!(ServerProgram::find(Flavour::Mariadb));
        let home = Folder::fresh().unwrap();
        let template = home.path().join(name(&program));
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    assert_eq!(ready_in(home.path(), &program).unwrap(), template);
                    // The template is complete as soon as it is visible.
                    assert!(template.join("ibdata1").exists() && template.join("mysql").is_dir());
                });
            }
        });
        let mut left: Vec<_> =
            fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        let name = name(&program);
        assert_eq!(left, [name.clone().into(), std::ffi::OsString::from(format!("{name}.lock"))]);
    }

    #[test]
    fn leftovers_of_a_crash_are_removed() {
        let program = crate::need!(ServerProgram::find(Flavour::Mariadb));
        let home = Folder::fresh().unwrap();
        let unfinished = home.path().join(name(&program)).with_extension("unfinished");
        fs::create_dir_all(unfinished.join("testkit_1/mysql")).unwrap();
        ready_in(home.path(), &program).unwrap();
        assert!(!unfinished.exists());
    }
}
