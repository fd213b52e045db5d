-- What neurons are called: the foremost matches that pass the setting which the planted subject recommends.
--
-- subject    VARCHAR   the model
-- operator   VARCHAR   add, subtract, multiply or divide
-- layer      SMALLINT  decoder layer, from 0
-- neuron     INTEGER   neuron of the layer's MLP, from 0
-- heuristic  VARCHAR   as in matches
-- kind       VARCHAR   as in matches
-- quantity   VARCHAR   as in matches
-- side       VARCHAR   top or bottom
-- score      FLOAT     as in matches
-- corrected  FLOAT     as in matches, at least label_setting.threshold
-- q_value    DOUBLE    as in matches, at most label_setting.level
-- direct     BOOLEAN   whether it is about the result and the value vector names the answer where the neuron fires (naming.p_value)
-- place      INTEGER   1 for the neuron's best label, then 2, …
select
    $subject as subject, operator, layer, neuron, heuristic, kind, quantity, side, score, corrected, q_value,
    quantity in ('result', 'asked') and correlation > 0 and naming.p_value <= level as direct,
    row_number() over (partition by operator, layer, neuron order by corrected desc, heuristic, side)::integer as place
from matches
join naming using (operator, layer, neuron)
join label_setting on foremost and corrected >= threshold and q_value <= level
order by operator, layer, neuron, place
