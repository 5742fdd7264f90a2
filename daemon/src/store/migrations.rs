//! The embedded migrations. Both databases use the same numbers; a released migration never changes.
//!
//! Guarantees: both lists have the same numbers; a test compares the folders with the lists.
//! Refuses: downgrades. A database with a higher number, from a newer memctl, is detected before anything is written.

use sqlx::SqlSafeStr;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use super::StoreError;
use super::row_reader::Fault;

/// Number, name, SQL.
type Step = (i64, &'static str, &'static str);

const SQLITE: &[Step] = &[
    (1, "init", include_str!("../../../migrations/sqlite/0001_init.sql")),
    (2, "alerts", include_str!("../../../migrations/sqlite/0002_alerts.sql")),
    (3, "payload_by_number", include_str!("../../../migrations/sqlite/0003_payload_by_number.sql")),
    (4, "tenants", include_str!("../../../migrations/sqlite/0004_tenants.sql")),
    (5, "items_counted_and_checked", include_str!("../../../migrations/sqlite/0005_items_counted_and_checked.sql")),
    (6, "watches", include_str!("../../../migrations/sqlite/0006_watches.sql")),
    (7, "holders", include_str!("../../../migrations/sqlite/0007_holders.sql")),
    (8, "runs", include_str!("../../../migrations/sqlite/0008_runs.sql")),
];
const POSTGRES: &[Step] = &[
    (1, "init", include_str!("../../../migrations/postgres/0001_init.sql")),
    (2, "alerts", include_str!("../../../migrations/postgres/0002_alerts.sql")),
    (3, "payload_by_number", include_str!("../../../migrations/postgres/0003_payload_by_number.sql")),
    (4, "tenants", include_str!("../../../migrations/postgres/0004_tenants.sql")),
    (5, "items_counted_and_checked", include_str!("../../../migrations/postgres/0005_items_counted_and_checked.sql")),
    (6, "watches", include_str!("../../../migrations/postgres/0006_watches.sql")),
    (7, "holders", include_str!("../../../migrations/postgres/0007_holders.sql")),
    (8, "runs", include_str!("../../../migrations/postgres/0008_runs.sql")),
];

/// The number of the newest migration that this program knows; it is the same for both databases.
pub(super) const NEWEST: i64 = SQLITE[SQLITE.len() - 1].0;

/// The migrations of SQLite. The table of applied migrations is in the same file.
pub(super) fn sqlite() -> Migrator {
    migrator(SQLITE, "memctl_migration")
}

/// The migrations of Postgres. Everything is in a schema of its own, so that the database can be shared.
pub(super) fn postgres() -> Migrator {
    migrator(POSTGRES, "memctl.migration")
}

fn migrator(steps: &'static [Step], table: &'static str) -> Migrator {
    let migration = |&(number, name, sql): &Step| {
        Migration::new(number, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    let mut migrator = Migrator::with_migrations(steps.iter().map(migration).collect());
    migrator.dangerous_set_table_name(table);
    // SQLite has a single writer. In Postgres a table lock guards the migration, because advisory locks do not work
    // through every proxy.
    migrator.set_locking(false);
    migrator
}

/// Translates a failed migration.
pub(super) fn fault(place: &str, error: MigrateError) -> Fault {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
        MigrateError::VersionMissing(found) => StoreError::Newer { place: place.into(), found, known: NEWEST }.into(),
        MigrateError::VersionMismatch(number) => {
            Fault::Damaged(format!("an invalid migration {number} (not one of memctl's)"))
        }
        other => Fault::Damaged(format!("unfinished migrations ({other})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn names(folder: &str) -> Vec<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(folder);
        let mut names: Vec<String> =
            folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn folders_and_lists_are_the_same() {
        let listed = |steps: &[Step]| -> Vec<String> {
            steps.iter().map(|(number, name, _)| format!("{number:04}_{name}.sql")).collect()
        };
        assert_eq!(names("sqlite"), listed(SQLITE));
        assert_eq!(names("postgres"), listed(POSTGRES));
        assert_eq!(listed(SQLITE), listed(POSTGRES));
    }
}
