-- Ablations of single neurons: each neuron that has a heuristic is ablated alone, at the last
-- position. For models too large for that (patched_neurons > 0), each operator and late layer has
-- the patched_neurons of largest attribution among these neurons, and sampled_neurons random ones.
-- Only late layers have attributions; the layers before them are left out.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row each
-- operator      VARCHAR    operator with which the neuron has a heuristic, and whose prompts it is
--                          run on
-- split         VARCHAR    split of the prompts that it is run on: evaluation
-- component     VARCHAR    component that is ablated: neuron, or none for the operator's clean run
-- layer         SMALLINT   decoder layer of the neuron, from 0
-- units         INTEGER[]  the one ablated neuron of the layer's MLP, from 0
-- position      VARCHAR    token position of the patch: last
-- key_position  VARCHAR    always null; only attention edges have a key position
-- replacement   VARCHAR    value that the neuron takes: zero or mean (pooled over operators), each
--                          once for the same neuron; null for the clean run
with
    attributions as (
        select operator, layer, neuron, effect as attribution from neuron_effects
            where method = 'attribution' and position = 'last'
    ),
    neurons as (
        from (select distinct operator, layer, neuron from heuristic_neurons)
            left join attributions using (operator, layer, neuron)
        where $patched_neurons = 0 or attribution is not null
        qualify $patched_neurons = 0
            or row_number() over (partition by operator, layer
                order by lot('neuron', layer, neuron), neuron) <= $sampled_neurons
            or row_number() over (partition by operator, layer
                order by attribution desc, neuron) <= $patched_neurons
    ),
    patches as (
        select operator, 'neuron' as component, layer, [neuron] as units, 'last' as position,
            unnest(['zero', 'mean']) as replacement
        from neurons
        union all
        select distinct operator, 'none', null, null, null, null from neurons
    )
select
    $subject as subject,
    (row_number() over (order by operator, layer nulls first, units, replacement) - 1)::integer
        as intervention,
    operator, 'evaluation' as split, component, layer::smallint as layer, units::integer[] as units,
    position,
    null::varchar as key_position, replacement
from patches
order by intervention
