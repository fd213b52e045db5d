-- The labels of neurons: matches that are not redundant and that pass the setting in use, which was
-- selected on the synthetic model `planted`.
--
-- subject           VARCHAR   the model
-- operator          VARCHAR   add, subtract, multiply or divide
-- layer             SMALLINT  decoder layer, from 0
-- neuron            INTEGER   neuron of the layer's MLP, from 0
-- heuristic         VARCHAR   name of the heuristic, as in the table matches
-- kind              VARCHAR   kind of the heuristic, as in the table matches
-- quantity          VARCHAR   what the heuristic is about: op1, op2, result, both, custom or asked
-- side              VARCHAR   top or bottom: whether the map's largest or smallest values are
--                             described
-- score             FLOAT     share of the k largest (or smallest) cells that satisfy the
--                             heuristic, 0 to 1, where k is the number of all cells that satisfy it
-- chance_corrected  FLOAT     chance-corrected score, at least label_setting.threshold; 0 is
--                             chance, 1 is perfect
-- q_value           DOUBLE    false discovery rate if all pairs with a p_family as small are
--                             labelled, at most label_setting.level
-- direct            BOOLEAN   whether the heuristic is about the result, and the neuron's value
--                             vector promotes the answer where the neuron is active
--                             (naming.p_value)
-- rank              INTEGER   rank among the neuron's labels, 1 for the highest chance-corrected
--                             score
select
    $subject as subject, operator, layer, neuron, heuristic, kind, quantity, side, score,
    chance_corrected, q_value,
    quantity in ('result', 'asked') and correlation > 0 and naming.p_value <= level as direct,
    row_number() over (
        partition by operator, layer, neuron order by chance_corrected desc, heuristic, side
    )::integer as rank
from matches
join naming using (operator, layer, neuron)
join label_setting on nonredundant and chance_corrected >= threshold and q_value <= level
order by operator, layer, neuron, rank
