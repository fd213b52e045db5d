-- Every late neuron replaced at the last position by what a theory says of it in that very prompt; everything else is as it was.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    null: prompts of every operator, each with the fits of its own operator
-- split         VARCHAR    prompts it is run on: evaluation
-- component     VARCHAR    mlp, all neurons of a layer, or none for the clean run
-- layer         SMALLINT   late layer, from 0
-- units         INTEGER[]  null: all of them
-- position      VARCHAR    token position: last
-- key_position  VARCHAR    null
-- replacement   VARCHAR    given; null of the clean run
-- given         VARCHAR    name in theories/theory_given.h5: theory, parameters and layer; null of the clean run
-- theory        VARCHAR    bag, helix or waves; mean, which has their intercept alone; itself, the activations as they are stored; clean
-- parameters    INTEGER    terms that a neuron may have, without the intercept; 0 of mean; null of itself and clean
-- kind          VARCHAR    fit, or relabelled: said by fits to relabelled maps
with
    late as (select distinct layer from theory_fits where layer is not null),
    said as (
        select distinct theory, parameters, unnest(['fit', 'relabelled']) as kind, max(parameters) over () as most
        from theory_fits
    ),
    patches as (
        select theory, parameters, kind, layer, format('{} {} {}{}', theory, parameters, if(kind = 'fit', '', kind || ' '), layer) as given
        from said, late where kind = 'fit' or parameters = most
        union all
        select 'itself', null, 'fit', layer, format('itself {}', layer) from late
        union all
        select 'mean', 0, 'fit', layer, format('mean {}', layer) from late
        union all
        select 'clean', null, 'fit', null, null
    )
select
    $subject as subject, (dense_rank() over (order by theory, parameters nulls first, kind) - 1)::integer as intervention,
    null::varchar as operator, 'evaluation' as split, if(layer is null, 'none', 'mlp') as component, layer::smallint as layer,
    null::integer[] as units, if(layer is null, null, 'last') as position, null::varchar as key_position,
    if(layer is null, null, 'given') as replacement, given, theory, parameters::integer as parameters, kind
from patches
order by intervention, layer
