//! Creating drops.

use aws_lc_rs::rand;
use db::{Earlier, Fingerprint, IdempotencyKey};

use super::Drops;
use crate::DropId;
use crate::error::Error;
use crate::model::{DropRecord, MAX_RESOURCE, Measured, Seed, Terms};
use crate::{check, stock, store};

const MAX_NAME: usize = 100;

/// A drop to be created.
#[derive(Clone, Debug)]
pub struct Create {
    pub name: String,
    /// What a unit is: the resource that the buyer's account is granted.
    pub resource: String,
    pub terms: Terms,
    /// How many units there are.
    pub stock: i64,
    /// Who creates it: written into the stock's ledger.
    pub actor: String,
}

/// A drop that was created, or was there already.
#[derive(Clone, Debug)]
pub struct Created {
    pub drop: DropRecord,
    /// Whether the same request has created it before.
    pub is_repeated: bool,
}

impl Drops {
    /// Creates a drop as a draft, with its stock. Fails with [`Error::NameTaken`] if there is one of this name.
    pub async fn create(&self, new: &Create) -> Result<DropRecord, Error> {
        new.check()?;
        let id = DropId::generate();
        self.insert(id, new, None).await?;
        self.get(id).await
    }

    /// As [`create`](Self::create), once per actor and key: the same request again returns the drop that it created.
    pub async fn create_once(&self, new: &Create, key: &str) -> Result<Created, Error> {
        new.check()?;
        let terms = serde_json::to_value(&new.terms)?;
        let request = Fingerprint::of("drops.create").text(&new.name).text(&new.resource);
        let request = request.integer(new.stock).json(&terms);
        let key = IdempotencyKey::new(&format!("drops.create/{}", new.actor), key, request)?;
        let id = DropId::generate();
        if let Some(drop) = self.created_under(&key).await? {
            return Ok(Created { drop, is_repeated: true });
        }
        match self.insert(id, new, Some(&key)).await {
            Ok(()) => Ok(Created { drop: self.get(id).await?, is_repeated: false }),
            // The name, or the key: the same request may have been faster.
            Err(taken @ Error::NameTaken(_)) => {
                let created = self.created_under(&key).await?;
                created.map(|drop| Created { drop, is_repeated: true }).ok_or(taken)
            }
            Err(error) => Err(error),
        }
    }

    async fn created_under(&self, key: &IdempotencyKey) -> Result<Option<DropRecord>, Error> {
        let reading = async {
            let mut tx = self.db.begin().await?;
            let earlier = key.earlier(&mut tx).await?;
            tx.rollback().await?;
            Ok::<_, db::Error>(earlier)
        };
        let unreadable = |cause: String| Error::Db(self.db.corrupt("idempotency_keys", key.row(), cause));
        match self.db.bounded(reading).await? {
            Earlier::Nothing => Ok(None),
            Earlier::OtherRequest(_) => Err(Error::KeyReused),
            Earlier::Unreadable(cause) => Err(unreadable(cause)),
            Earlier::Answer(text) => {
                let id = text.parse().map_err(|_| unreadable(format!("{text:?} is no drop")))?;
                self.get(id).await.map(Some)
            }
        }
    }

    async fn insert(&self, id: DropId, new: &Create, key: Option<&IdempotencyKey>) -> Result<(), Error> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes).map_err(|_| Error::NoSeed)?;
        let seed = Seed::from_bytes(bytes);
        let (terms, measured) = (new.terms.to_stored()?, Measured::default().to_stored()?);
        db::retrying(Error::is_conflict, || async {
            let creating = async {
                let mut tx = self.db.begin().await?;
                let row = store::NewDrop {
                    id,
                    name: &new.name,
                    resource: &new.resource,
                    terms: &terms,
                    seed: &seed,
                    measured: &measured,
                };
                store::insert(&mut tx, row);
                stock::create_in(&mut tx, id, new.stock, Some(&new.actor))?;
                if let Some(key) = key {
                    key.record(&mut tx, id.as_uuid(), &id.to_string());
                }
                Ok(tx.commit().await?)
            };
            match self.db.bounded(creating).await {
                // A row with our id is ours: the attempt before was committed and not acknowledged.
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

impl Create {
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
