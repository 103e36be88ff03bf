//! Maps errors to problem documents: the stable `type` of each cause.

use base::Code;
use base::error::{Coded, chain};
use http_server::Problem;

use crate::error::Error;
use crate::token::TokenError;

/// Maps an error to a problem document. Errors that a caller cannot act on are logged and not explained.
pub(crate) fn problem(error: Error) -> Problem {
    let code = error.code();
    match code {
        Code::Internal => {
            tracing::error!(cause = chain(&error), "a request to drops failed");
            Problem::new(code)
        }
        Code::Unavailable | Code::Timeout => {
            tracing::warn!(outage = "drops", cause = chain(&error), "a request to drops failed");
            Problem::new(code)
        }
        _ => {
            let problem = Problem::new(code).detail(error.to_string());
            match error.cause() {
                Some(cause) => problem.cause(cause),
                None => problem,
            }
        }
    }
}

impl Error {
    /// Returns the stable suffix of the problem's `type`. None where the code says enough.
    pub fn cause(&self) -> Option<&'static str> {
        Some(match self {
            Self::Invalid { .. } => "drops:invalid",
            Self::Terms(_) => "drops:invalid-terms",
            Self::NoSuchDrop(_) => "drops:no-such-drop",
            Self::NameTaken(_) => "drops:name-taken",
            Self::WrongState { .. } => "drops:wrong-state",
            Self::Fixed { .. } => "drops:fixed",
            Self::OpenReservations(_) => "drops:open-reservations",
            Self::NotJoinable(_) => "drops:not-joinable",
            Self::NotEligible => "drops:not-eligible",
            Self::NotInLine => "drops:not-in-line",
            Self::NotAdmitted => "drops:not-admitted",
            Self::AdmissionEnded => "drops:admission-ended",
            Self::BadAdmission(TokenError::OtherPlayer) => "drops:admission-of-another-player",
            Self::BadAdmission(TokenError::OtherDrop) => "drops:admission-to-another-drop",
            Self::BadAdmission(_) => "drops:admission-forged",
            Self::NotOpen(_) => "drops:not-open",
            Self::SoldOut { .. } => "drops:sold-out",
            Self::OverLimit { .. } => "drops:over-limit",
            Self::UnknownReservation(_) => "drops:no-such-reservation",
            Self::ReservationEnded(_) => "drops:reservation-ended",
            Self::AlreadyPaid(_) => "drops:already-paid",
            Self::StockInUse { .. } => "drops:stock-in-use",
            Self::UnknownOrder(_) => "drops:no-such-order",
            Self::OtherQuantity { .. } => "drops:other-quantity",
            Self::WrongAmount { .. } => "drops:wrong-amount",
            Self::OtherPayment(_) => "drops:other-payment",
            Self::NoRefundDue(_) => "drops:no-refund-due",
            Self::WebhookReused => "drops:webhook-reused",
            Self::Unsigned(_) => "drops:bad-signature",
            Self::UnreadableWebhook(_) => "drops:unreadable-webhook",
            Self::BadKey(_) => "drops:bad-key",
            Self::KeyReused => "drops:key-reused",
            Self::Batch(error) => return error.cause(),
            Self::Entitlement(_)
            | Self::Db(_)
            | Self::Line(_)
            | Self::NoWebhookKeys
            | Self::NoBatchResult
            | Self::RowCountMismatch { .. }
            | Self::NoRandomBytes
            | Self::Encoding(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn shared_transaction_does_not_hide_the_cause() {
        let shared = Error::Batch(Arc::new(Error::KeyReused));
        assert_eq!(shared.cause(), Some("drops:key-reused"));
        assert_eq!(Error::NoBatchResult.cause(), None);
    }
}
