-- Patches of single neurons at the last position with their values in the counterfactual prompt, on
-- the prompts of all digits: the neurons of digit_neurons and digit_matched, each for its
-- operators. So the top neurons of any digit are measured on every digit. Nothing is patched again
-- if every neuron is patched already, for every digit.
--
-- subject       VARCHAR    the model that predicts the first digit
-- intervention  INTEGER    number of the intervention, from 0, the clean run
-- operator      VARCHAR    operator of the prompts that the intervention runs on; null for the
--                          clean run, which runs on all operators
-- split         VARCHAR    prompts that the intervention runs on, always discovery
-- component     VARCHAR    neuron, or none for the clean run
-- layer         SMALLINT   decoder layer of the neuron, from 0; null for the clean run
-- units         INTEGER[]  the single neuron of the layer's MLP, from 0; null for the clean run
-- position      VARCHAR    role of the patched token, last; null for the clean run
-- key_position  VARCHAR    always null: no attention edge is patched
-- replacement   VARCHAR    counterfactual; null for the clean run
with
    selected as (
        select operator, layer, neuron from digit_neurons
        union
        select operator, layer, neuron from digit_matched
    ),
    missing as (
        from selected where exists (from digit_neurons where method = 'attribution')
    )
select
    $first as subject,
    0 as intervention,
    null::varchar as operator,
    'discovery' as split,
    'none' as component,
    null::smallint as layer,
    null::integer[] as units,
    null::varchar as position,
    null::varchar as key_position,
    null::varchar as replacement
union all
select
    $first,
    row_number() over (order by layer, neuron, operator)::integer,
    operator, 'discovery', 'neuron',
    layer, [neuron], 'last', null, 'counterfactual'
from missing
order by intervention
