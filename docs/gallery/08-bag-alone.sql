-- The bag of heuristics alone
-- Accuracy when the late layers keep only their heuristic neurons, as many random neurons, or the
-- rest. All other late neurons take their mean. For sums and differences, the heuristic neurons are
-- nearly enough. For products and quotients, the rest is more accurate than they are.
select operator, accuracy, kept
from bag_alone
where
    subject = $subject and criterion = 'fdr' and ablation = 'mean'
    and kept in ('heuristic', 'random', 'rest')
order by operator, kept
