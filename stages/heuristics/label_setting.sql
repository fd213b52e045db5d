-- The threshold of labels. It is selected on the synthetic model `planted`, whose ground truth is
-- known, at the false discovery rate of the settings.
--
-- threshold        DOUBLE  smallest chance-corrected score of a label, 0 to 1: the threshold with
--                          the largest f1; the largest of these thresholds if several tie
-- level            DOUBLE  largest q_value of a label, 0 to 1
-- precision        DOUBLE  precision over all labels of `planted`, noise neurons included, 0 to 1
-- recall           DOUBLE  recall over all planted pairs, imperfect ones included, 0 to 1
-- f1               DOUBLE  harmonic mean of precision and recall, 0 to 1
-- exact_precision  DOUBLE  precision on neurons that implement a heuristic exactly, 0 to 1
-- exact_recall     DOUBLE  recall on neurons that implement a heuristic exactly, 0 to 1
-- noise_labelled   DOUBLE  share of noise neurons that have a label, 0 to 1
with
    rated as (
        select
            threshold, level, precision, recall,
            2 * right_labels / (labels + planted) as f1
        from label_calibration
        where grade = 'all' and kind = 'all' and level = $level::double and labels > 0
    ),
    best as (from rated order by f1 desc, threshold desc limit 1),
    exact as (
        select threshold, level, precision as exact_precision, recall as exact_recall
        from label_calibration where grade = 'exact' and kind = 'all'
    ),
    noise as (
        select threshold, level, labelled_neurons / neurons as noise_labelled
        from label_calibration where grade = 'noise' and kind = 'all'
    )
select
    threshold, level, precision, recall, f1, exact_precision, exact_recall, noise_labelled
from best
left join exact using (threshold, level)
left join noise using (threshold, level)
order by threshold
