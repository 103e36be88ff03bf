//! Row types.

/// Declares the type of a row, with one field per column, that can be read in either dialect.
///
/// The query fails if a field's name or type does not match its column. A tuple would accept any columns of matching types, in any order.
///
/// ```
/// db::row! {
///     /// A row of `users`.
///     struct UserRow {
///         user_id: Vec<u8>,
///         display_name: Option<String>,
///     }
/// }
///
/// # async fn example(connection: &mut db::Conn) -> Result<Vec<Option<String>>, db::Error> {
/// let rows: Vec<UserRow> = db::on!(connection, raw => {
///     sqlx::query_as("SELECT user_id, display_name FROM users").fetch_all(raw).await?
/// });
/// # assert!(rows.iter().all(|row| !row.user_id.is_empty()));
/// Ok(rows.into_iter().map(|row| row.display_name).collect())
/// # }
/// ```
#[macro_export]
macro_rules! row {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)+ }) => {
        $(#[$meta])*
        #[derive(Debug)]
        $vis struct $name {
            $($(#[$doc])* $field: $type,)+
        }

        impl<'r, R: ::sqlx::Row> ::sqlx::FromRow<'r, R> for $name
        where
            &'static str: ::sqlx::ColumnIndex<R>,
            $($type: ::sqlx::Decode<'r, R::Database> + ::sqlx::Type<R::Database>,)+
        {
            fn from_row(row: &'r R) -> ::std::result::Result<Self, ::sqlx::Error> {
                Ok(Self { $($field: ::sqlx::Row::try_get(row, stringify!($field))?,)+ })
            }
        }
    };
}
