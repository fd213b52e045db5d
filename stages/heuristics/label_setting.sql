-- The threshold of labels, chosen where the truth is known: on the planted subject, at the level asked for.
--
-- threshold         DOUBLE  corrected score from which a foremost match is a label: the one of largest f1, the larger of equals
-- level             DOUBLE  largest q_value of a label
-- precision         DOUBLE  of all labels of planted neurons, noise neurons included
-- recall            DOUBLE  of all planted pairs, imperfect ones included
-- f1                DOUBLE  harmonic mean of both
-- exact_precision   DOUBLE  precision on neurons that are a heuristic exactly
-- exact_recall      DOUBLE  recall on them
-- noise_labelled    DOUBLE  share of noise neurons that have a label
with
    rated as (
        select threshold, level, precision, recall, 2 * right_labels / (labels + planted) as f1
        from label_calibration where grade = 'all' and kind = 'all' and level = $level::double and labels > 0
    ),
    chosen as (from rated order by f1 desc, threshold desc limit 1),
    exact as (
        select threshold, level, precision as exact_precision, recall as exact_recall
        from label_calibration where grade = 'exact' and kind = 'all'
    ),
    noise as (select threshold, level, labelled_neurons / neurons as noise_labelled from label_calibration where grade = 'noise' and kind = 'all')
select threshold, level, precision, recall, f1, exact_precision, exact_recall, noise_labelled
from chosen left join exact using (threshold, level) left join noise using (threshold, level)
order by threshold
