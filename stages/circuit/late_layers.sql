-- The layers that promote the answer: from the first one whose output lets a linear probe read it at the last position.
--
-- subject      VARCHAR   the model
-- first_layer  SMALLINT  first of the late layers, from 0; null where the answer cannot be read behind any layer
-- layers       SMALLINT  layers of the model, so that the late ones are first_layer to layers - 1
-- accuracy     DOUBLE    accuracy of the probe behind first_layer, mean over operators
with
    by_layer as (  -- an operator that is hardly ever answered correctly has no probe, and no say
        select
            layer,
            avg(accuracy) as accuracy,
            -- a probe that knows no more than how frequent each answer is has read nothing
            avg(larger(shuffled_accuracy, majority_accuracy)) as control
        from probes
        where position = 'last'
        group by layer
    )
select
    $subject as subject,
    min(layer) filter (where accuracy >= $readable and accuracy > control) as first_layer,
    (max(layer) + 1)::smallint as layers,
    arg_min(accuracy, layer) filter (where accuracy >= $readable and accuracy > control) as accuracy
from by_layer
order by subject
