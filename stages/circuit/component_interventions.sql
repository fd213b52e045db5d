-- Every component, one at a time and at one position, takes the value it has in the counterfactual prompt (Sec. 2, Fig. 2a).
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0, the clean run
-- operator      VARCHAR    null: run on the prompts of every operator
-- split         VARCHAR    prompts it is run on: discovery
-- component     VARCHAR    mlp or head that is patched, or none
-- layer         SMALLINT   decoder layer, from 0; null where nothing is patched
-- units         INTEGER[]  the one head; null for an MLP
-- position      VARCHAR    token position: op1, operator, op2 or last
-- key_position  VARCHAR    null, of edges only
-- replacement   VARCHAR    counterfactual; null where nothing is patched
with
    components as (
        select 'mlp' as component, layer, null as head from each_layer()
        union all
        select 'head', layer, head from each_head()
    ),
    patches as (
        select 'none' as component, null as layer, null as head, null as position, null as role from architecture
        union all
        select component, layer, head, position, role from components, roles()
    )
select
    $subject as subject,
    (row_number() over (order by layer nulls first, head nulls first, role) - 1)::integer as intervention,
    null::varchar as operator, 'discovery' as split,
    component, layer::smallint as layer, if(head is null, null, [head::integer]) as units, position,
    null::varchar as key_position, if(layer is null, null, 'counterfactual') as replacement
from patches
order by intervention
