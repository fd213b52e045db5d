-- Patches of the residual stream with each theory's prediction, at an operand's own token or, for
-- the answer, at the last token. `another` patches with another number's residual stream.
-- `shuffled` is the control, the helix of shuffled numbers.
--
-- subject        VARCHAR    the model
-- intervention   INTEGER    number of the intervention, from 0
-- operator       VARCHAR    always null: prompts of all operators, each with its operator's fit
-- split          VARCHAR    prompts that the intervention runs on, always evaluation
-- component      VARCHAR    residual, or none for the clean run
-- layer          SMALLINT   decoder layer that the patched residual stream enters, from 0; null for
--                           the clean run
-- units          INTEGER[]  always null: all coordinates of the residual stream
-- position       VARCHAR    role of the patched token: op1, op2 or last; null for the clean run
-- key_position   VARCHAR    always null: no attention edge is patched
-- replacement    VARCHAR    given (values from a file); null for the clean run
-- given          VARCHAR    name of the values in theories/helix_given.h5: theory, position and
--                           layer; null for the clean run
-- theory         VARCHAR    theory of helix_fits, or another, shuffled or clean
-- numbers_below  INTEGER    the fit uses only numbers below this, and predicts nothing for larger
--                           ones; null: all numbers
with
    sites as (
        select position, layer, numbers_below
        from helix_fits as fits
        join (
            select operator, position, quantity, layer, theory, numbers as all_numbers,
                cells as all_cells
            from helix_fits where numbers_below is null
        ) as whole using (operator, position, quantity, layer, theory)
        where layer < (select layers from architecture)
            and (position = quantity or (quantity = 'result' and layer > 0))
        group by all
        -- if no number is left out, both fits are the same
        having numbers_below is null or bool_or((numbers, cells) <> (all_numbers, all_cells))
    ),
    theories as (
        select unnest([
            'another', 'shuffled', 'line', 'circle', 'circles', 'helix', 'polynomial', 'pca',
            'number'
        ]) as theory
    ),
    patches as (
        select
            'residual' as component, layer, position, 'given' as replacement,
            format(
                '{} {} {}{}', theory, position, layer, if(numbers_below is null, '', ' below')
            ) as given,
            theory, numbers_below
        from sites, theories
        union all
        select 'none', null, null, null, null, 'clean', null
    )
select
    $subject as subject,
    (row_number() over (
        order by layer nulls first, position, theory, numbers_below nulls first
    ) - 1)::integer as intervention,
    null::varchar as operator,
    'evaluation' as split,
    component,
    layer::smallint as layer,
    null::integer[] as units,
    position,
    null::varchar as key_position,
    replacement, given, theory, numbers_below
from patches
order by intervention
