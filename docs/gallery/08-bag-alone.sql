-- The bag of heuristics alone
-- Accuracy when the late layers keep only their heuristic neurons, as many random neurons, or the
-- rest; all other late neurons take their mean. The heuristic neurons carry sums and differences.
-- They do not carry products and quotients, for which the rest is more accurate.
select operator, accuracy, kept
from bag_alone
where
    subject = $subject and criterion = 'fdr' and ablation = 'mean'
    and kept in ('heuristic', 'random', 'rest')
order by operator, kept
