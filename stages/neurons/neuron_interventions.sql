-- Patches of single neurons with their values in the counterfactual prompt (Sec. 3, Fig. 4a; App.
-- B.1, Fig. 12a). Late layers, which promote the answer, are patched at the last position. The
-- first layer, which reads the operands, is patched at op1, operator and op2. In a model too large
-- for that (patched_neurons above 0), two kinds of neurons are patched in each layer and at each
-- position: for each operator the patched_neurons with the largest mean attribution, and
-- sampled_neurons random ones, the same for all operators. From the latter, attribution_recall
-- estimates what attribution misses. The sign of an attribution counts, because circuits consist of
-- neurons that promote the answer.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0, the clean run
-- operator      VARCHAR    operator of the prompts that the intervention runs on, for which the
--                          neuron has a large attribution; null: all operators
-- split         VARCHAR    prompts that the intervention runs on, always discovery
-- component     VARCHAR    neuron, or none for the clean run
-- layer         SMALLINT   decoder layer of the neuron, from 0; null for the clean run
-- units         INTEGER[]  the single neuron of the layer's MLP, from 0; null for the clean run
-- position      VARCHAR    role of the patched token: op1, operator, op2 or last; null for the
--                          clean run
-- key_position  VARCHAR    always null: no attention edge is patched
-- replacement   VARCHAR    counterfactual; null for the clean run
with
    places as (  -- without the last position if first_layer is null
        select
            role, position,
            unnest(if(position = 'last', range(first_layer, layers), [0])) as layer
        from roles(), late_layers
    ),
    sample as (  -- all neurons if all are patched
        select layer, role, position, neuron
        from (
            select layer, role, position, unnest(range(neurons)) as neuron
            from architecture, places
        )
        qualify $patched_neurons = 0
            or row_number() over (
                    partition by role, layer order by lot('neuron', layer, neuron), neuron)
                <= $sampled_neurons
    ),
    estimated as (
        select operator, layer, position, neuron, avg(attribution::double) as attribution
        from neuron_attributions join pairs using (pair)
        where split = 'discovery' and $patched_neurons > 0
        group by all
    ),
    largest as (
        from estimated
        qualify row_number() over (
                partition by operator, layer, position order by attribution desc, neuron)
            <= $patched_neurons
    ),
    patches as (
        select null as operator, layer, role, position, neuron from sample
        union all
        select operator, layer, role, position, neuron
        from largest
        join roles() using (position)
        anti join sample using (layer, position, neuron)
    )
select
    $subject as subject,
    0 as intervention,
    null::varchar as operator,
    'discovery' as split,
    'none' as component,
    null::smallint as layer,
    null::integer[] as units,
    null::varchar as position,
    null::varchar as key_position,
    null::varchar as replacement
from architecture
union all
select
    $subject,
    row_number() over (order by role, layer, neuron, operator nulls first)::integer,
    operator, 'discovery', 'neuron',
    layer::smallint, [neuron::integer], position, null, 'counterfactual'
from patches
order by intervention
