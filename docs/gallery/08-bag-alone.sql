-- The bag of heuristics alone
-- Accuracy when the late layers keep only their heuristic neurons, as many random neurons, as many
-- others of the nearest variance (matched), or all but the heuristic ones (rest). All other late
-- neurons take their mean. For sums and differences, the heuristic neurons are nearly enough. For
-- quotients, matched ones do nearly as well. For products and quotients, the rest does better.
select operator, accuracy, kept
from bag_alone
where
    subject = $subject and criterion = 'fdr' and ablation = 'mean'
    and kept in ('heuristic', 'matched', 'random', 'rest')
order by operator, kept
