-- The neurons that stand for each heuristic at a point of training, in the layers that are late at its end.
-- They are counted as `scored` is in heuristic_neurons, but without relabelling, whose null would take a quarter of an hour per point, and
-- with ties as scores have them: a neuron that says the same of every cell may count here, and does not there.
--
-- subject    VARCHAR   the model at this point
-- operator   VARCHAR   add, subtract, multiply or divide
-- layer      SMALLINT  one of the last point's late layers, from 0
-- neuron     INTEGER   neuron of the layer's MLP, from 0
-- heuristic  VARCHAR   as in scores
-- kind       VARCHAR   as in scores
-- quantity   VARCHAR   as in scores
-- corrected  FLOAT     as in scores, of the better side; at least label_setting.threshold
-- shared     BOOLEAN   whether the neuron stands for this heuristic at the last point, too
with
    standing as (
        select scores.subject, operator, layer, neuron, heuristic, kind, quantity, max(corrected) as corrected
        from scores
        join label_setting on corrected >= threshold
        join late_layers on layer >= first_layer
        group by all
    ),
    ending as (select operator, layer, neuron, heuristic, true as shared from standing where subject = (select subject from late_layers))
select standing.*, coalesce(shared, false) as shared
from standing left join ending using (operator, layer, neuron, heuristic)
where subject = $subject
order by operator, layer, neuron, heuristic
