//! Which rules can be judged before a match is complete.

use super::Bounds;
use crate::expression::Expression;
use crate::model::{AttributeKind, CollectionOperation, Reference, Rule, RuleKind, RuleSet};

impl Rule {
    /// Returns which limits of the rule can only be broken further by more tickets.
    pub(crate) fn lasting_bounds(&self, rules: &RuleSet) -> Bounds {
        const NONE: Bounds = Bounds { min: false, max: false };
        const MAX: Bounds = Bounds { min: false, max: true };
        let are_per_player = |measurements: &[Expression]| measurements.iter().all(Expression::is_per_player);
        let is_fixed = |reference: &Reference| matches!(reference, Reference::Number | Reference::Texts(_));
        // Whether each list is one player's, not a list of all players' texts, which grows.
        let are_players_lists = |measurements: &[Expression]| {
            let mut are_lists = true;
            for measurement in measurements {
                are_lists &= measurement.shape.depth >= 2;
                measurement
                    .attributes(&mut |at| are_lists &= rules.attributes[at].kind == AttributeKind::TextList);
            }
            are_lists
        };
        match &self.kind {
            RuleKind::BlockList { .. } | RuleKind::BatchDistance { .. } => Bounds::BOTH,
            // The range of latencies may shrink towards an average.
            RuleKind::Latency { .. } if self.max_distance.is_absent() => Bounds::BOTH,
            RuleKind::Comparison { measurements, reference, .. }
                if are_per_player(measurements) && reference.as_ref().is_none_or(is_fixed) =>
            {
                Bounds::BOTH
            }
            RuleKind::Distance { measurements, reference }
                if are_per_player(measurements) && is_fixed(reference) =>
            {
                Bounds::BOTH
            }
            RuleKind::Collection { measurements, operation, reference } if are_per_player(measurements) => {
                let are_lists = are_players_lists(measurements);
                let reads_players = |reference: &Reference| match reference {
                    Reference::Expression(expression) => expression.is_per_player(),
                    _ => true,
                };
                match operation {
                    CollectionOperation::Intersection if are_lists => Bounds { min: true, max: false },
                    CollectionOperation::Intersection => NONE,
                    _ if !reference.as_ref().is_some_and(reads_players) => NONE,
                    CollectionOperation::ReferenceIntersectionCount
                        if are_lists && reference.as_ref().is_some_and(is_fixed) =>
                    {
                        Bounds::BOTH
                    }
                    CollectionOperation::ReferenceIntersectionCount | CollectionOperation::Contains => MAX,
                }
            }
            _ => NONE,
        }
    }
}
