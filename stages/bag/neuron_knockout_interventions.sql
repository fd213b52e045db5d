-- Knock-outs of single neurons: each that stands for some heuristic is silenced alone, at the last
-- position. Of models too large for that, so many neurons of each operator and layer, drawn by lot
-- (patched_neurons).
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row each
-- operator      VARCHAR    on which it stands for a heuristic, and whose prompts it is run on
-- split         VARCHAR    prompts it is run on: evaluation
-- component     VARCHAR    neuron, or none for the operator's clean run
-- layer         SMALLINT   decoder layer of the neuron, from 0
-- units         INTEGER[]  the neuron, from 0
-- position      VARCHAR    token position: last
-- key_position  VARCHAR    null, of edges only
-- replacement   VARCHAR    zero or mean (pooled over operators), each once for the same neuron;
--                          null for the clean run
with
    neurons as (
        from (select distinct operator, layer, neuron from heuristic_neurons)
        qualify $patched_neurons = 0
            or row_number() over (
                partition by operator, layer order by lot('neuron', layer, neuron), neuron
            ) <= $patched_neurons
    ),
    patches as (
        select operator, 'neuron' as component, layer, [neuron] as units, 'last' as position, unnest(['zero', 'mean']) as replacement
        from neurons
        union all
        select distinct operator, 'none', null, null, null, null from neurons
    )
select
    $subject as subject,
    (row_number() over (order by operator, layer nulls first, units, replacement) - 1)::integer as intervention,
    operator, 'evaluation' as split, component, layer::smallint as layer, units::integer[] as units, position,
    null::varchar as key_position, replacement
from patches
order by intervention
