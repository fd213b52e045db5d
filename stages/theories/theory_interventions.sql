-- Patches of every late neuron at the last position with a theory's prediction for that prompt.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patched layer
-- operator      VARCHAR    always null: prompts of all operators, each with its operator's fits
-- split         VARCHAR    prompts that the intervention runs on, always evaluation
-- component     VARCHAR    mlp (all neurons of a layer), or none for the clean run
-- layer         SMALLINT   late layer, from 0; null for the clean run
-- units         INTEGER[]  always null: all neurons of the layer
-- position      VARCHAR    role of the patched token, last; null for the clean run
-- key_position  VARCHAR    always null: no attention edge is patched
-- replacement   VARCHAR    given (values from a file); null for the clean run
-- given         VARCHAR    name of the values in theories/theory_given.h5: theory, parameters if
--                          not null, relabelled if it is a control, and layer; null for the clean
--                          run
-- theory        VARCHAR    bag, helix, waves, labels or discovered, as in theory_fits; mean (each
--                          neuron's mean); itself (the stored activations); or clean
-- parameters    INTEGER    largest number of terms per neuron, without the intercept; 0 for mean,
--                          null for labels, discovered, itself and clean
-- kind          VARCHAR    fit, or relabelled for the control: fits to relabelled maps (bag, helix,
--                          waves; for the most parameters and those of $control_budgets), or of
--                          another neuron's terms (labels, discovered)
with
    late as (select distinct layer from theory_fits where layer is not null),
    fits as (
        select distinct
            theory, parameters,
            unnest(['fit', 'relabelled']) as kind,
            max(parameters) over (partition by theory) as most
        from theory_fits
    ),
    patches as (
        select
            theory, parameters, kind, layer,
            concat_ws(' ', theory, parameters, nullif(kind, 'fit'), layer) as given
        from fits, late
        where kind = 'fit' or parameters is not distinct from most
            or parameters in (select unnest($control_budgets::integer[]))
        union all
        select 'itself', null, 'fit', layer, format('itself {}', layer) from late
        union all
        select 'mean', 0, 'fit', layer, format('mean {}', layer) from late
        union all
        select 'clean', null, 'fit', null, null
    )
select
    $subject as subject,
    (dense_rank() over (order by theory, parameters nulls first, kind) - 1)::integer
        as intervention,
    null::varchar as operator,
    'evaluation' as split,
    if(layer is null, 'none', 'mlp') as component,
    layer::smallint as layer,
    null::integer[] as units,
    if(layer is null, null, 'last') as position,
    null::varchar as key_position,
    if(layer is null, null, 'given') as replacement,
    given, theory,
    parameters::integer as parameters,
    kind
from patches
order by intervention, layer
