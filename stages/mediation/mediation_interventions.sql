-- Every MLP, every whole attention block and, where single_heads is true, every head takes its
-- counterfactual value: one at a time, at one token. Of a head with units null, all heads of the
-- layer together: the attention block's output.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0, the clean run
-- operator      VARCHAR    null: run on the prompts of every operator
-- split         VARCHAR    null: these pairs have no splits
-- component     VARCHAR    mlp or head that is patched, or none
-- layer         SMALLINT   decoder layer, from 0; null where nothing is patched
-- units         INTEGER[]  the one head; null for an MLP and for a whole attention block
-- position      VARCHAR    the token's place in the prompt, from 0, up to the longest prompt's last; pairs of shorter prompts are left out
-- key_position  VARCHAR    null, of edges only
-- replacement   VARCHAR    counterfactual; null where nothing is patched
with
    layers as (
        select layer, if($single_heads, heads, 0) as heads from each_layer()
    ),
    components as (
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
    null::varchar as operator, null::varchar as split,
    component, layer::smallint as layer, if(unit >= 0, [unit::integer], null) as units, place::varchar as position,
    null::varchar as key_position, if(layer is null, null, 'counterfactual') as replacement
from patches
order by intervention
