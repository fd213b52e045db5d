-- Patches of one neuron at a time: each takes its value under the counterfactual prompt (Sec. 3,
-- Fig. 4a; App. B.1, Fig. 12a). Late layers, which promote the answer, at the last position; the
-- first layer, which reads the operands, at theirs. Of models too large for that, so many neurons
-- of each layer, drawn by lot and the same for every k (patched_neurons).
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0, which patches nothing
-- operator      VARCHAR    prompts it is run on: null, those of every operator
-- split         VARCHAR    prompts it is run on: discovery
-- component     VARCHAR    neuron, or none for the clean run
-- layer         SMALLINT   decoder layer of the neuron, from 0
-- units         INTEGER[]  the neuron of the layer's MLP, from 0
-- position      VARCHAR    token position: op1, operator, op2 or last
-- key_position  VARCHAR    null, of edges only
-- replacement   VARCHAR    counterfactual; null for the clean run
with
    places as (  -- none of the last position where first_layer is null
        select role, position, unnest(if(position = 'last', range(first_layer, layers), [0])) as layer from roles(), late_layers
    ),
    patches as (
        select layer, role, position, neuron
        from (select layer, role, position, unnest(range(neurons)) as neuron from architecture, places)
        qualify $patched_neurons = 0
            or row_number() over (partition by role, layer order by lot('neuron', layer, neuron), neuron) <= $patched_neurons
    )
select
    $subject as subject, 0 as intervention, null::varchar as operator, 'discovery' as split, 'none' as component,
    null::smallint as layer, null::integer[] as units, null::varchar as position, null::varchar as key_position,
    null::varchar as replacement
from architecture
union all
select
    $subject, row_number() over (order by role, layer, neuron)::integer, null, 'discovery', 'neuron',
    layer::smallint, [neuron::integer], position, null, 'counterfactual'
from patches
order by intervention
