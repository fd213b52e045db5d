-- Activation patching: every component, one at a time and at one position, takes the value that it
-- has in the counterfactual prompt (Sec. 2, Fig. 2a).
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention; 0 is the clean run
-- operator      VARCHAR    always null: each intervention is run on the prompts of every operator
-- split         VARCHAR    split of the prompts that it is run on: discovery
-- component     VARCHAR    component that is patched: mlp or head, or none for the clean run
-- layer         SMALLINT   decoder layer, from 0; null for the clean run
-- units         INTEGER[]  the one patched head, from 0; null for an MLP
-- position      VARCHAR    token position of the patch: op1, operator, op2 or last; null for the
--                          clean run
-- key_position  VARCHAR    always null; only attention edges have a key position
-- replacement   VARCHAR    value that the component takes: counterfactual; null for the clean run
with
    components as (
        select 'mlp' as component, layer, null as head from each_layer()
        union all
        select 'head', layer, head from each_head()
    ),
    patches as (
        select 'none' as component, null as layer, null as head, null as position, null as role
        from architecture
        union all
        select component, layer, head, position, role from components, roles()
    )
select
    $subject as subject,
    (row_number() over (order by layer nulls first, head nulls first, role) - 1)::integer
        as intervention,
    null::varchar as operator, 'discovery' as split,
    component, layer::smallint as layer, if(head is null, null, [head::integer]) as units, position,
    null::varchar as key_position, if(layer is null, null, 'counterfactual') as replacement
from patches
order by intervention
