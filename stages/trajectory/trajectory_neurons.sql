-- The neurons that have each heuristic at a checkpoint, in the layers that are late at the last
-- checkpoint. The criterion is that of `threshold` in heuristic_neurons, with two differences.
-- There is no permutation test, which would take a quarter of an hour for each checkpoint. Ties
-- count as in scores: a neuron that contributes equally to every cell may count here, and does
-- not there.
--
-- subject           VARCHAR   the model at this checkpoint
-- operator          VARCHAR   add, subtract, multiply or divide
-- layer             SMALLINT  layer that is late at the last checkpoint, from 0
-- neuron            INTEGER   number of the neuron of the layer's MLP, from 0
-- heuristic         VARCHAR   name of the heuristic, as in scores
-- kind              VARCHAR   type of the heuristic, as in scores
-- quantity          VARCHAR   quantity that the heuristic is about, as in scores
-- chance_corrected  FLOAT     chance-corrected score of the better side, as in scores; at least
--                             label_setting.threshold
-- shared            BOOLEAN   whether the neuron has this heuristic at the last checkpoint, too
with
    standing as (
        select scores.subject, operator, layer, neuron, heuristic, kind, quantity,
            max(chance_corrected) as chance_corrected
        from scores
        join label_setting on chance_corrected >= threshold
        join late_layers on layer >= first_layer
        group by all
    ),
    ending as (select operator, layer, neuron, heuristic, true as shared from standing
        where subject = (select subject from late_layers))
select standing.*, coalesce(shared, false) as shared
from standing left join ending using (operator, layer, neuron, heuristic)
where subject = $subject
order by operator, layer, neuron, heuristic
