-- Patches of one neuron at a time: each takes its value under the counterfactual prompt (Sec. 3,
-- Fig. 4a; App. B.1, Fig. 12a). Late layers, which promote the answer, at the last position; the
-- first layer, which reads the operands, at theirs. Of models too large for that
-- (patched_neurons > 0), two kinds of neurons of each layer and position: the patched_neurons of
-- largest mean attribution, operator by operator, and sampled_neurons drawn by lot, the same for
-- every operator. From the latter, attribution_recall estimates what attribution misses. The sign
-- of an attribution counts, because circuits are made of neurons of large effect, not of those that
-- oppose the answer.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0, which patches nothing
-- operator      VARCHAR    prompts it is run on: those of the operator for which the neuron has a
--                          large attribution; null, those of every operator
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
    sample as (  -- all neurons where all are patched
        select layer, role, position, neuron
        from (select layer, role, position, unnest(range(neurons)) as neuron from architecture, places)
        qualify $patched_neurons = 0
            or row_number() over (partition by role, layer
                order by lot('neuron', layer, neuron), neuron) <= $sampled_neurons
    ),
    estimated as (
        select operator, layer, position, neuron, avg(attribution::double) as attribution
        from neuron_attributions join pairs using (pair)
        where split = 'discovery' and $patched_neurons > 0
        group by all
    ),
    largest as (
        from estimated
        qualify row_number() over (partition by operator, layer, position
            order by attribution desc, neuron) <= $patched_neurons
    ),
    patches as (
        select null as operator, layer, role, position, neuron from sample
        union all
        select operator, layer, role, position, neuron
        from largest join roles() using (position) anti join sample using (layer, position, neuron)
    )
select
    $subject as subject, 0 as intervention, null::varchar as operator, 'discovery' as split, 'none' as component,
    null::smallint as layer, null::integer[] as units, null::varchar as position, null::varchar as key_position,
    null::varchar as replacement
from architecture
union all
select
    $subject, row_number() over (order by role, layer, neuron, operator nulls first)::integer,
        operator, 'discovery', 'neuron',
    layer::smallint, [neuron::integer], position, null, 'counterfactual'
from patches
order by intervention
