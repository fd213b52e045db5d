-- The late layers, which promote the answer: from the first of them on, a linear probe of the
-- residual stream after the layer reads the answer at the last position.
--
-- Accuracies are corrected for chance: 0 is the better of two controls, the most frequent answer
-- and shuffled answers, and 1 is no error. An operator's plateau is its best layer. An operator
-- counts if its plateau reaches $least_plateau. A layer is readable if the operators that count
-- reach, on average, $readable of their plateaus there. All late layers are readable.
--
-- subject      VARCHAR   the model
-- first_layer  SMALLINT  first late layer, from 0; null if no operator counts, or if the last layer
--                        is not readable
-- layers       SMALLINT  number of layers of the model; the late layers are first_layer to layers -
--                        1
-- accuracy     DOUBLE    accuracy of the probe after first_layer, 0 to 1, mean over all operators
--                        that have a probe
with
    chance_corrected as (  -- null without a probe, and if a control is always correct
        select operator, layer, accuracy,
            larger(shuffled_accuracy, majority_accuracy) as control,
            (accuracy - control) / nullif(1 - control, 0) as gain
        from probes
        where position = 'last'
    ),
    compared as (select *, max(gain) over (partition by operator) as plateau from chance_corrected),
    by_layer as (
        select
            layer,
            avg(accuracy) as accuracy,
            avg(gain / plateau) filter (plateau >= $least_plateau) >= $readable as readable
        from compared
        group by layer
    ),
    suffixes as (
        select
            layer,
            accuracy,
            bool_and(coalesce(readable, false)) over (order by layer desc) as late
        from by_layer
    )
select
    $subject as subject,
    min(layer) filter (where late) as first_layer,
    (max(layer) + 1)::smallint as layers,
    arg_min(accuracy, layer) filter (where late) as accuracy
from suffixes
order by subject
