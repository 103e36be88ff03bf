-- Settings that every process of a deployment must agree on, as the first of them had them.
CREATE TABLE deployment_settings (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID
