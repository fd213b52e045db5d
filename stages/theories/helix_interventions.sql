-- What theories of a number say of the residual stream, put in its place: at an operand's token, or at the last one for the answer.
-- The floor is the stream of another number, `another`; the control the helix of shuffled numbers, `shuffled`.
--
-- subject        VARCHAR    the model
-- intervention   INTEGER    number of the intervention, from 0
-- operator       VARCHAR    null: prompts of every operator, each with the fit of its own operator
-- split          VARCHAR    prompts it is run on: evaluation
-- component      VARCHAR    residual, or none for the clean run
-- layer          SMALLINT   decoder layer that the stream enters, from 0
-- units          INTEGER[]  null: the whole stream
-- position       VARCHAR    role of the token: op1, op2 or last
-- key_position   VARCHAR    null
-- replacement    VARCHAR    given; null of the clean run
-- given          VARCHAR    name in theories/helix_given.h5: theory, position and layer
-- theory         VARCHAR    as in helix_fits; another, shuffled, or clean
-- numbers_below  INTEGER    of the fit, as in helix_fits; it says nothing of prompts with other numbers
with
    sites as (
        select distinct position, layer, numbers_below from helix_fits
        where layer < (select layers from architecture) and (position = quantity or (quantity = 'result' and layer > 0))
    ),
    theories as (
        select unnest(['another', 'shuffled', 'line', 'circle', 'circles', 'helix', 'polynomial', 'pca', 'number']) as theory
    ),
    patches as (
        select 'residual' as component, layer, position, 'given' as replacement,
            format('{} {} {}{}', theory, position, layer, if(numbers_below is null, '', ' below')) as given, theory, numbers_below
        from sites, theories
        union all
        select 'none', null, null, null, null, 'clean', null
    )
select
    $subject as subject,
    (row_number() over (order by layer nulls first, position, theory, numbers_below nulls first) - 1)::integer as intervention,
    null::varchar as operator, 'evaluation' as split, component, layer::smallint as layer, null::integer[] as units, position,
    null::varchar as key_position, replacement, given, theory, numbers_below
from patches
order by intervention
