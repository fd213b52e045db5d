-- The interventions of the experiment NAME.
-- Edit this: as written, it ablates each MLP at the last position, one at a time.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention; 0 is the clean run; rows with the same
--                          number are applied together
-- operator      VARCHAR    operator of the prompts that it is run on; null for every operator
-- split         VARCHAR    split of the prompts that it is run on: discovery or evaluation
-- component     VARCHAR    component that is patched: mlp, or none for the clean run
-- layer         SMALLINT   decoder layer, from 0; null for the clean run
-- units         INTEGER[]  heads, neurons or coordinates that are patched, from 0; null for all
-- position      VARCHAR    token position of the patch: op1, operator, op2 or last; null for the
--                          clean run
-- key_position  VARCHAR    position that an attention edge attends to; null for other components
-- replacement   VARCHAR    value that the component takes: mean; null for the clean run
with
    patches as (
        select null::smallint as layer from architecture
        union all
        select layer from each_layer()
    )
select
    $subject as subject,
    (row_number() over (order by layer nulls first) - 1)::integer as intervention,
    null::varchar as operator, 'evaluation' as split,
    if(layer is null, 'none', 'mlp') as component, layer::smallint as layer,
    null::integer[] as units, if(layer is null, null, 'last') as position,
    null::varchar as key_position, if(layer is null, null, 'mean') as replacement
from patches
order by intervention
