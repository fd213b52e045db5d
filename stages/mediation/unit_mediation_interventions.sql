-- Every neuron of the late layers, and every coordinate of what their MLPs put out, takes its counterfactual value at the last
-- position: one at a time. Without a late layer, those of the second half of the layers. Only of subjects in single_units.
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
        from architecture as a, late_layers where list_contains($single_units, $subject)
    ),
    patches as (
        select layer, 'neuron' as component, unnest(range(neurons)) as unit from late
        union all
        select layer, 'coordinate', unnest(range(width)) from late
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
