-- Patches of single units of the late MLPs at the last position with their counterfactual values.
-- Units are neurons, and coordinates of the MLP's output. A model without a late layer uses the
-- second half of its layers. There are no patches if single_units is false. For a model with
-- patched_neurons above 0, a layer's patched neurons are the patched_neurons with the largest
-- attribution on the grid (mean over prompts, largest over operators) and sampled_neurons random
-- ones, and equally many random coordinates are patched.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0, the clean run
-- operator      VARCHAR    always null: the intervention runs on prompts of all operators
-- split         VARCHAR    always null: these pairs have no splits
-- component     VARCHAR    neuron or coordinate, or none for the clean run
-- layer         SMALLINT   decoder layer, from 0; null for the clean run
-- units         INTEGER[]  neuron of the layer's MLP, or coordinate of its output, from 0; null for
--                          the clean run
-- position      VARCHAR    role of the patched token, last; null for the clean run
-- key_position  VARCHAR    always null: no attention edge is patched
-- replacement   VARCHAR    counterfactual; null for the clean run
with
    late as (
        select
            unnest(range(coalesce(first_layer, a.layers // 2), a.layers)) as layer,
            neurons, width
        from architecture as a, late_layers
        where $single_units
    ),
    units as (
        select layer, 'neuron' as component, unnest(range(neurons)) as unit from late
        union all
        select layer, 'coordinate', unnest(range(width)) from late
    ),
    attributions as (  -- of neurons in late layers; coordinates have none
        select layer, 'neuron' as component, neuron as unit, max(effect) as attribution
        from neuron_effects
        where method = 'attribution' and position = 'last'
        group by layer, neuron
    ),
    selected as (
        from units left join attributions using (layer, component, unit)
        qualify
            $patched_neurons = 0
            or row_number() over (
                    partition by layer, component order by lot(component, layer, unit), unit)
                <= $sampled_neurons + if(component = 'coordinate', $patched_neurons, 0)
            or attribution is not null
                and row_number() over (
                    partition by layer, component order by attribution desc nulls last, unit)
                <= $patched_neurons
    ),
    patches as (
        select layer, component, unit from selected
        union all
        select null, 'none', null
    )
select
    $subject as subject,
    (row_number() over (order by layer nulls first, component desc, unit) - 1)::integer
        as intervention,
    null::varchar as operator,
    null::varchar as split,
    component,
    layer::smallint as layer,
    if(layer is null, null, [unit::integer]) as units,
    if(layer is null, null, 'last') as position,
    null::varchar as key_position,
    if(layer is null, null, 'counterfactual') as replacement
from patches
order by intervention
