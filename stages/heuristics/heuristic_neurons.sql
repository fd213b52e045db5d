-- The neurons that implement each heuristic, by three criteria. Ablations of heuristics use them.
--
-- subject           VARCHAR   the model
-- operator          VARCHAR   add, subtract, multiply or divide
-- criterion         VARCHAR   criterion: label, the heuristic is a label of the neuron; fdr, the
--                             match passes the threshold and level of label_setting, redundant or
--                             not; threshold, the match passes the threshold, whatever its q_value
-- layer             SMALLINT  decoder layer, from 0
-- neuron            INTEGER   neuron of the layer's MLP, from 0
-- heuristic         VARCHAR   name of the heuristic, as in the table matches
-- chance_corrected  FLOAT     chance-corrected score of the better side, 0 is chance, 1 is perfect
-- late              BOOLEAN   whether the layer is a late layer
with
    passing as (
        select
            operator, layer, neuron, heuristic, max(chance_corrected) as chance_corrected,
            bool_or(q_value <= level) as fdr,
            bool_or(q_value <= level and nonredundant) as label
        from matches join label_setting on chance_corrected >= threshold
        group by operator, layer, neuron, heuristic
    ),
    counted as (
        select 'threshold' as criterion, * from passing
        union all select 'fdr', * from passing where fdr
        union all select 'label', * from passing where label
    )
select
    $subject as subject, operator, criterion, layer, neuron, heuristic, chance_corrected,
    coalesce(layer >= (select first_layer from late_layers), false) as late
from counted
order by operator, criterion, layer, neuron, heuristic
