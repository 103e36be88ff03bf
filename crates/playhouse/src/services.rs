//! The services of the program.

use db::Migrations;
use screens::Operation;
use service::{OperatorRoute, OperatorRow, Row, Services};

use crate::start::locks;

/// Every service, in the order in which they are opened and migrated.
pub(crate) const SERVICES: Services = Services(&[
    &operators::Wiring,
    &fleet::Wiring,
    &jobs::Wiring,
    &outbox::Wiring,
    &account::Wiring,
    &entitlement::Wiring,
    &notification::Wiring,
    &matchmaking::Wiring,
    &drops::Wiring,
    &locks::Wiring,
    &gateway::Wiring,
    &try_it::Wiring,
    &console::Wiring,
]);

/// Returns the migrations of the database and of all services, in their order.
pub(crate) fn migrations() -> Vec<Migrations> {
    SERVICES.migrations().collect()
}

/// Returns the rows of all routes of the gateway: its own, and those that services add.
pub fn gateway_rows() -> Vec<Row> {
    let added = SERVICES.player_routes().into_iter().map(|route| route.row);
    gateway::rows().into_iter().chain(added).collect()
}

/// Returns the routes of the admin API, and the pages of the console's screens.
pub(crate) fn operator_routes(services: Services) -> Vec<OperatorRoute> {
    services.operator_routes().into_iter().chain(console::routes(services)).collect()
}

/// Returns the rows of all routes that services add to the admin listener.
pub fn operator_rows() -> Vec<OperatorRow> {
    operator_routes(SERVICES).into_iter().map(|route| route.row).collect()
}

/// Returns the paths of all screens of the console, such as `/console/drops/{drop_id}`.
pub fn console_screens() -> Vec<&'static str> {
    SERVICES.screens().into_iter().map(|screen| screen.path).collect()
}

/// Returns the routes that the console offers as actions, and how it offers them.
pub fn console_operations() -> Vec<(OperatorRow, Operation)> {
    let routes = SERVICES.operator_routes().into_iter();
    routes.filter_map(|route| Some((route.row, route.operation?))).collect()
}

/// Returns the routes that the console offers as actions, as `METHOD PATH`.
pub fn console_actions() -> Vec<String> {
    console_operations().iter().map(|(row, _)| format!("{} {}", row.method(), row.path())).collect()
}

/// Returns the routes of the service API that are recorded in the audit log, as `METHOD PATH`.
pub fn audited_service_routes() -> Vec<String> {
    let routes = SERVICES.audited_service_routes().into_iter();
    routes.map(|(method, path)| format!("{method} {path}")).collect()
}

#[cfg(test)]
mod operations;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use sha2::{Digest, Sha256};

    use super::*;

    /// The folder of a crate of the workspace.
    struct CrateFolder(PathBuf);

    impl CrateFolder {
        fn all() -> Vec<Self> {
            let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
            fs::read_dir(crates).unwrap().map(|entry| Self(entry.unwrap().path())).collect()
        }

        fn name(&self) -> String {
            self.0.file_name().unwrap().to_str().unwrap().to_owned()
        }

        /// Returns whether the crate depends on another one, apart from its tests.
        fn uses(&self, name: &str) -> bool {
            let manifest = fs::read_to_string(self.0.join("Cargo.toml")).unwrap();
            let (_, rest) = manifest.split_once("[dependencies]").unwrap_or_default();
            let dependencies = rest.split("\n[").next().unwrap_or_default();
            dependencies.lines().any(|line| line.starts_with(&format!("{name}.workspace")))
        }

        /// Returns the texts in the sources between `marker` and the next quotation mark.
        fn quoted(&self, marker: &str) -> Vec<String> {
            let (mut words, mut folders) = (Vec::new(), vec![self.0.join("src")]);
            while let Some(folder) = folders.pop() {
                for entry in fs::read_dir(folder).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_dir() {
                        folders.push(path);
                    } else if path.extension().is_some_and(|extension| extension == "rs") {
                        let text = fs::read_to_string(path).unwrap();
                        let after = text.split(marker).skip(1);
                        words.extend(after.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
                    }
                }
            }
            words
        }
    }

    /// Returns every Lua script of the product: its file and its text.
    fn lua_files() -> Vec<(PathBuf, String)> {
        let (mut files, mut folders) =
            (Vec::new(), vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.ends_with("parts") {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "lua") {
                    files.push((path.clone(), fs::read_to_string(path).unwrap()));
                }
            }
        }
        files
    }

    #[test]
    fn every_script_is_checked_before_a_process_starts() {
        let tried: Vec<(&str, String)> =
            SERVICES.scripts().iter().map(|trial| (trial.name, trial.script.text())).collect();
        let files = lua_files();
        assert_eq!(files.len(), tried.len());
        for (path, text) in files {
            let file = path.file_name().unwrap().to_str().unwrap();
            let is_tried = |(name, tried): &(&str, String)| name.ends_with(file) && tried.ends_with(&text);
            assert!(tried.iter().any(is_tried), "{} has no trial: see `Service::scripts`", path.display());
        }
    }

    /// Returns the quoted texts of all crates except this one, which only collects.
    fn quoted(marker: &str) -> BTreeSet<String> {
        let others = CrateFolder::all().into_iter().filter(|folder| folder.name() != "playhouse");
        others.flat_map(|folder| folder.quoted(marker)).collect()
    }

    #[test]
    fn every_service_crate_is_in_the_list() {
        let is_service = |folder: &CrateFolder| folder.uses("service") && folder.name() != "playhouse";
        let crates = CrateFolder::all();
        let found = crates.iter().filter(|folder| is_service(folder)).map(CrateFolder::name);
        // `service` depends on `hierlock`, so the wiring of the locks is in this crate.
        let found: BTreeSet<String> = found.chain(["hierlock".to_owned()]).collect();
        let listed: BTreeSet<String> = SERVICES.iter().map(|service| service.name().to_owned()).collect();
        assert_eq!(found, listed, "a crate that depends on `service` has its `Wiring` in SERVICES");
        assert_eq!(SERVICES.iter().count(), listed.len(), "two services have the same name");
    }

    #[test]
    fn every_migration_event_and_right_is_declared() {
        let tables = migrations().into_iter().map(|set| set.component.to_owned());
        let tables: BTreeSet<String> = tables.filter(|component| component != "hierlock").collect();
        assert_eq!(quoted("component: \""), tables, "Service::migrations is incomplete");

        let is_kind = |word: &String| {
            !word.contains('{')
                && word.rsplit_once(".v").is_some_and(|(_, version)| version.parse::<u32>().is_ok())
        };
        let events = SERVICES.events().iter().map(|event| event.kind.replace("playhouse.", "")).collect();
        let found: BTreeSet<String> = quoted("\"playhouse.").into_iter().filter(is_kind).collect();
        assert_eq!(found, events, "Service::events is incomplete");

        let rights = SERVICES.iter().flat_map(|service| service.rights());
        let rights: BTreeSet<String> = rights.map(|right| right.word().to_owned()).collect();
        assert_eq!(quoted("Right::new(\""), rights, "Service::rights is incomplete");
    }

    #[test]
    fn migrations_are_numbered_named_and_single_statements_on_mysql() {
        let migrations = migrations();
        let components: BTreeSet<&str> = migrations.iter().map(|set| set.component).collect();
        assert_eq!(components.len(), migrations.len(), "two sets have the same component");
        for set in migrations {
            for (at, migration) in set.list.iter().enumerate() {
                assert_eq!(migration.version as usize, at + 1, "{}", set.component);
                let statements = migration.mysql.split(';').filter(|text| !text.trim().is_empty()).count();
                assert_eq!(statements, 1, "{}: MySQL commits each statement separately", migration.name);
            }
        }
    }

    /// Guards released migrations: every deployed database refuses to start with a changed one. Only add lines to this snapshot.
    #[test]
    fn released_migrations_are_never_edited() {
        let digest = |text: &str| {
            Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let lines: Vec<String> = migrations()
            .into_iter()
            .flat_map(|set| set.list.iter().map(move |step| (set.component, step)))
            .map(|(component, step)| {
                let (sqlite, mysql) = (digest(step.sqlite), digest(step.mysql));
                format!("{component}/{:04}_{} sqlite:{sqlite} mysql:{mysql}", step.version, step.name)
            })
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
