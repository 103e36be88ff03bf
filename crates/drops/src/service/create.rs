//! Creates drops.

use aws_lc_rs::rand;
use db::{IdempotencyKey, KeyLookup, RequestFingerprint};

use super::Drops;
use crate::DropId;
use crate::error::Error;
use crate::model::{CycleStats, DropRecord, MAX_RESOURCE, Seed, Terms};
use crate::{check, stock, store};

const MAX_NAME: usize = 100;

/// A drop to be created.
#[derive(Clone, Debug)]
pub struct NewDrop {
    pub name: String,
    /// What a unit is: the resource that the buyer's account is granted.
    pub resource: String,
    pub terms: Terms,
    /// How many units are for sale.
    pub stock: i64,
    /// The service or operator that creates it, for the stock's ledger.
    pub actor: String,
}

/// The drop that a request created, now or in an earlier attempt.
#[derive(Clone, Debug)]
pub struct CreatedDrop {
    pub drop: DropRecord,
    /// Whether an earlier request with the same key created it.
    pub is_repeated: bool,
}

impl Drops {
    /// Creates a drop as a draft, with its stock. Fails with [`Error::NameTaken`] if a drop has this name.
    pub async fn create(&self, new: &NewDrop) -> Result<DropRecord, Error> {
        new.check()?;
        let id = DropId::generate();
        self.insert(id, new, None).await?;
        self.get(id).await
    }

    /// Creates a drop like [`create`](Self::create), once per actor and idempotency key. A repeated request returns the drop that the first
    /// one created.
    pub async fn create_once(&self, new: &NewDrop, key: &str) -> Result<CreatedDrop, Error> {
        new.check()?;
        let terms = serde_json::to_value(&new.terms)?;
        let request = RequestFingerprint::new("drops.create").text(&new.name).text(&new.resource);
        let request = request.integer(new.stock).json(&terms);
        let key = IdempotencyKey::new(&format!("drops.create/{}", new.actor), key, request)?;
        let id = DropId::generate();
        if let Some(drop) = self.drop_created_with(&key).await? {
            return Ok(CreatedDrop { drop, is_repeated: true });
        }
        match self.insert(id, new, Some(&key)).await {
            Ok(()) => Ok(CreatedDrop { drop: self.get(id).await?, is_repeated: false }),
            // Either the name or the key exists: a concurrent attempt of this request may have won.
            Err(taken @ Error::NameTaken(_)) => {
                let created = self.drop_created_with(&key).await?;
                created.map(|drop| CreatedDrop { drop, is_repeated: true }).ok_or(taken)
            }
            Err(error) => Err(error),
        }
    }

    async fn drop_created_with(&self, key: &IdempotencyKey) -> Result<Option<DropRecord>, Error> {
        let reading = async {
            let mut tx = self.db.begin().await?;
            let earlier = key.look_up(&mut tx).await?;
            tx.rollback().await?;
            Ok::<_, db::Error>(earlier)
        };
        let unreadable = |cause: String| Error::Db(self.db.corrupt("idempotency_keys", key.row(), cause));
        match self.db.bounded(reading).await? {
            KeyLookup::New => Ok(None),
            KeyLookup::OtherRequest(_) => Err(Error::KeyReused),
            KeyLookup::Unreadable(cause) => Err(unreadable(cause)),
            KeyLookup::RecordedResponse(text) => {
                let id = text.parse().map_err(|_| unreadable(format!("{text:?} is not a drop id")))?;
                self.get(id).await.map(Some)
            }
        }
    }

    async fn insert(&self, id: DropId, new: &NewDrop, key: Option<&IdempotencyKey>) -> Result<(), Error> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes).map_err(|_| Error::NoRandomBytes)?;
        let seed = Seed::from_bytes(bytes);
        let (terms, stats) = (new.terms.to_stored()?, CycleStats::default().to_stored()?);
        db::retry_conflicts(Error::is_conflict, || async {
            let creating = async {
                let mut tx = self.db.begin().await?;
                let row = store::NewDropRow {
                    id,
                    name: &new.name,
                    resource: &new.resource,
                    terms: &terms,
                    seed: &seed,
                    stats: &stats,
                };
                store::insert(&mut tx, row);
                stock::create_in(&mut tx, id, new.stock, Some(&new.actor))?;
                if let Some(key) = key {
                    key.record(&mut tx, id.as_uuid(), &id.to_string());
                }
                Ok(tx.commit().await?)
            };
            match self.db.bounded(creating).await {
                // A row with our id is ours: an earlier attempt committed, but its acknowledgement was lost.
                Err(Error::Db(db::Error::Duplicate(_))) if self.find(id).await?.is_none() => {
                    Err(Error::NameTaken(new.name.clone()))
                }
                Err(Error::Db(db::Error::Duplicate(_))) => Ok(()),
                done => done,
            }
        })
        .await
    }
}

impl NewDrop {
    fn check(&self) -> Result<(), Error> {
        for (field, text, max) in [
            ("name", &self.name, MAX_NAME),
            ("resource", &self.resource, MAX_RESOURCE),
            ("actor", &self.actor, MAX_NAME),
        ] {
            check::text(field, text, max)?;
        }
        check::units("stock", self.stock)?;
        self.terms.check().map_err(Error::Terms)
    }
}
