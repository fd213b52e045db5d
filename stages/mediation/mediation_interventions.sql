-- Patches of single components at single tokens with their counterfactual values: of every MLP,
-- every attention block and, if single_heads is true, every head. `head` with units null patches
-- all heads of the layer together, which is the attention block's output.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0, the clean run
-- operator      VARCHAR    always null: the intervention runs on prompts of all operators
-- split         VARCHAR    always null: these pairs have no splits
-- component     VARCHAR    mlp or head, or none for the clean run
-- layer         SMALLINT   decoder layer, from 0; null for the clean run
-- units         INTEGER[]  the single head; null for an MLP and for an attention block
-- position      VARCHAR    position of the token in the prompt, from 0 to the end of the longest
--                          prompt; shorter prompts are left out; null for the clean run
-- key_position  VARCHAR    always null: no attention edge is patched
-- replacement   VARCHAR    counterfactual; null for the clean run
with
    layers as (
        select layer, if($single_heads, heads, 0) as heads from each_layer()
    ),
    components as (  -- unit: a head, -1 for all heads, -2 for the MLP
        select layer, 'mlp' as component, -2 as unit from layers
        union all
        select layer, 'head', unnest(range(-1, heads)) from layers
    ),
    places as (select unnest(range(max(len(tokens)))) as place from mediation_pairs),
    patches as (
        select 'none' as component, null as layer, null as unit, null as place
        union all
        select component, layer, unit, place from components, places
    )
select
    $subject as subject,
    (row_number() over (order by layer nulls first, unit, place) - 1)::integer as intervention,
    null::varchar as operator,
    null::varchar as split,
    component,
    layer::smallint as layer,
    if(unit >= 0, [unit::integer], null) as units,
    place::varchar as position,
    null::varchar as key_position,
    if(layer is null, null, 'counterfactual') as replacement
from patches
order by intervention
