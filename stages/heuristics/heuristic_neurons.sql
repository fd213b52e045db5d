-- The neurons that stand for each heuristic, by three ways of counting them. Whatever silences or keeps heuristics takes them from here.
--
-- subject     VARCHAR   the model
-- operator    VARCHAR   add, subtract, multiply or divide
-- membership  VARCHAR   label: the heuristic is a label of the neuron; called: the match passes threshold and level of label_setting, whether
--                       or not a better one says the same; scored: it passes the threshold, whatever chance would do
-- layer       SMALLINT  decoder layer, from 0
-- neuron      INTEGER   neuron of the layer's MLP, from 0
-- heuristic   VARCHAR   as in matches
-- corrected   FLOAT     as in matches, of the better side
-- late        BOOLEAN   whether the layer is one of the late layers
with
    passing as (
        select operator, layer, neuron, heuristic, max(corrected) as corrected,
            bool_or(q_value <= level) as called, bool_or(q_value <= level and foremost) as label
        from matches join label_setting on corrected >= threshold
        group by operator, layer, neuron, heuristic
    ),
    counted as (
        select 'scored' as membership, * from passing
        union all select 'called', * from passing where called
        union all select 'label', * from passing where label
    )
select
    $subject as subject, operator, membership, layer, neuron, heuristic, corrected,
    coalesce(layer >= (select first_layer from late_layers), false) as late
from counted
order by operator, membership, layer, neuron, heuristic
