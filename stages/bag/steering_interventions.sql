-- Set late neurons to their mean activation over cells whose result has another digit (Du et al.
-- 2025, who rank neurons by a linear classifier of the digit, and set those of the source digit to
-- zero), or over cells with a carry other than the prompt's. Neurons are ranked by the share of
-- their variance that the digit or the carry explains on discovery cells. Every run has its values
-- in steering_given.h5.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    operator of the prompts that it is run on
-- split         VARCHAR    prompts that it is run on: evaluation
-- component     VARCHAR    component that is patched: neuron
-- layer         SMALLINT   late layer of the patched neurons, from 0
-- units         INTEGER[]  the patched neurons of the layer's MLP, from 0
-- position      VARCHAR    token position of the patch: last
-- key_position  VARCHAR    always null; only attention edges have a key position
-- replacement   VARCHAR    given: external values, the mean activation over discovery cells with
--                          the target digit
-- given         VARCHAR    name of these values in steering_given.h5: place, draw and layer
-- place         VARCHAR    what is steered: ones, tens, asked or carry, as in steering_targets
-- draw          INTEGER    draw of the target in steering_targets; 0 is the prompt's own digit
-- arm           VARCHAR    patched neurons: labelled (those with a label about the result, or for
--                          carry about a carry into the tens or a borrow from them, whose
--                          activation the digit explains best), separating (those of all late
--                          neurons), matched (as many other neurons of the same layers, of the
--                          variances nearest to those of separating ones, as in matched_neurons;
--                          none if more than half of a layer is separating),
--                          random (equally many random late neurons, others for each draw) or all
--                          (every late neuron)
-- neurons       INTEGER    number of patched neurons
with
    ranked as (
        select distinct operator, place, layer, unnest(range(len(shares))) as neuron,
            unnest(shares) as share
        from (from digit_means where digit = 0)
    ),
    labelled as (
        select distinct operator, layer, neuron,
            heuristic in ('carry into 10', 'borrow from 10') as is_carry
        from labels
        where quantity in ('result', 'asked') or heuristic in ('carry into 10', 'borrow from 10')
    ),
    draws as (select distinct place, draw from steering_targets),
    candidates as (
        select 'separating' as arm, operator, place, draw, layer, neuron, -share as preference
        from ranked join draws using (place)
        union all
        select 'labelled', operator, place, draw, layer, neuron, -share
        from (select *, place = 'carry' as is_carry from ranked) join draws using (place)
        semi join labelled using (operator, layer, neuron, is_carry)
        union all
        select 'random', operator, place, draw, layer, neuron,
            lot($steering_seed, 'random', draw, operator, place, layer, neuron)
        from ranked join draws using (place)
        union all
        select 'all', operator, place, draw, layer, neuron, null from ranked
        join draws using (place)
    ),
    ordered as (
        select *, row_number() over (
                partition by arm, operator, place, draw order by preference, layer, neuron
            ) as rank,
            count(*) over (partition by arm, operator, place, draw) as most
        from candidates
    ),
    matched as (  -- with fewer neurons it would not be a control
        select operator, place, layer, matched as neuron, neurons
        from matched_neurons where arm = 'separating'
        qualify count(matched) over (partition by operator, place, neurons) = neurons
    ),
    selected as (  -- an arm with too few neurons has all of them, once
        select distinct on (arm, operator, place, draw, layer, neuron, neurons)
            arm, operator, place, draw, layer, neuron, smaller(k, most) as neurons
        from ordered, (select unnest($steered_neurons::bigint[]) as k)
        where rank <= k or arm = 'all'
        union all
        select 'matched', operator, place, draw, layer, neuron, neurons
        from matched join draws using (place)
    ),
    patches as (
        select arm, operator, place, draw, layer,
            if(arm = 'all', null, neurons) as k,
            list(distinct neuron::integer order by neuron::integer) as units
        from selected
        where operator in (select operator from pairs where split = 'evaluation')
        group by all
    )
select
    $subject as subject,
    (dense_rank() over (order by operator, place, arm, k nulls first, draw)
        - 1)::integer as intervention,
    operator, 'evaluation' as split, 'neuron' as component, layer::smallint as layer, units,
    'last' as position, null::varchar as key_position, 'given' as replacement,
    concat_ws(' ', place, draw, 'layer', layer) as given, place, draw, arm,
    sum(len(units)) over (partition by operator, place, arm, k, draw)::integer
        as neurons
from patches
order by intervention, layer
