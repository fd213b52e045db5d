-- Every neuron of the late layers, and every coordinate of what their MLPs put out, takes its counterfactual value at the last
-- position: one at a time. Without a late layer, those of the second half of the layers. None where
-- single_units is false. Of models too large for all neurons (patched_neurons > 0), of each layer
-- the patched_neurons of largest attribution on the grid (mean over prompts, of the operator for
-- which it is largest), sampled_neurons drawn by lot, and as many coordinates, all by lot.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0, the clean run
-- operator      VARCHAR    null: run on the prompts of every operator
-- split         VARCHAR    null: these pairs have no splits
-- component     VARCHAR    neuron or coordinate that is patched, or none
-- layer         SMALLINT   decoder layer, from 0; null where nothing is patched
-- units         INTEGER[]  the neuron of the layer's MLP, or the coordinate of its output, from 0
-- position      VARCHAR    last
-- key_position  VARCHAR    null, of edges only
-- replacement   VARCHAR    counterfactual; null where nothing is patched
with
    late as (
        select unnest(range(coalesce(first_layer, a.layers // 2), a.layers)) as layer, neurons, width
        from architecture as a, late_layers where $single_units
    ),
    units as (
        select layer, 'neuron' as component, unnest(range(neurons)) as unit from late
        union all
        select layer, 'coordinate', unnest(range(width)) from late
    ),
    attributions as (  -- of neurons; there are none of coordinates, nor of layers that are not late
        select layer, 'neuron' as component, neuron as unit, max(effect) as attribution
        from neuron_effects where method = 'attribution' and position = 'last'
            group by layer, neuron
    ),
    chosen as (
        from units left join attributions using (layer, component, unit)
        qualify $patched_neurons = 0
            or row_number() over (partition by layer, component
                order by lot(component, layer, unit), unit)
                <= $sampled_neurons + if(component = 'coordinate', $patched_neurons, 0)
            or attribution is not null
                and row_number() over (partition by layer, component
                    order by attribution desc nulls last, unit) <= $patched_neurons
    ),
    patches as (
        select layer, component, unit from chosen
        union all
        select null, 'none', null
    )
select
    $subject as subject,
    (row_number() over (order by layer nulls first, component desc, unit) - 1)::integer as intervention,
    null::varchar as operator, null::varchar as split,
    component, layer::smallint as layer, if(layer is null, null, [unit::integer]) as units,
    if(layer is null, null, 'last') as position, null::varchar as key_position,
    if(layer is null, null, 'counterfactual') as replacement
from patches
order by intervention
