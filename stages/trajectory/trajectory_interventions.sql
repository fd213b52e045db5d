-- Interventions that measure what the heuristic neurons carry at a checkpoint (Sec. 5, Fig. 10b and
-- 10c). They keep all heuristic neurons alone, keep those shared with the last checkpoint alone, or
-- ablate for each prompt the neurons of its own heuristics. Only layers that are late at the last
-- checkpoint are patched.
--
-- subject            VARCHAR    the model at this checkpoint
-- intervention       INTEGER    number of the intervention, from 0; one row per patch
-- operator           VARCHAR    operator of the heuristics, and of the prompts that it is run on
-- split              VARCHAR    split of the prompts that it is run on: evaluation
-- pair               INTEGER    number of the one pair that it is run on; null for all pairs of the
--                               operator
-- component          VARCHAR    component that is ablated: neuron, or none if there is nothing to
--                               ablate
-- layer              SMALLINT   late layer of the ablated neurons, from 0
-- units              INTEGER[]  the ablated neurons of the layer's MLP, from 0
-- position           VARCHAR    token position of the patch: last
-- key_position       VARCHAR    always null; only attention edges have a key position
-- replacement        VARCHAR    value that ablated neurons take: mean (pooled over operators) where
--                               neurons are kept and all others ablated; zero where a prompt's
--                               neurons are ablated
-- kept               VARCHAR    late neurons that are kept: everything, nothing, all (those that
--                               have a heuristic), shared (those that have the same heuristic at
--                               the last checkpoint), drawn (in each layer, as many random ones of
--                               all as are shared) or random (as many random late neurons as all);
--                               null where a prompt's neurons are ablated
-- draw               INTEGER    number of the random draw for drawn and random, from 0; null
--                               otherwise
-- arm                VARCHAR    neurons of a prompt that are ablated: heuristic (those of its own
--                               heuristics, best first) or control (as many random ones that have
--                               none of its heuristics); null where neurons are kept
-- neurons_per_layer  INTEGER    number of neurons to be ablated in each late layer; fewer are
--                               ablated if there are no more; null where neurons are kept
-- neurons            INTEGER    number of late neurons that are kept, or ablated, in all layers
--                               together
with
    late as (select distinct layer, neuron from naming join late_layers on layer >= first_layer),
    operators as (select distinct operator from pairs),
    with_heuristic as (
        select operator, layer, neuron, bool_or(shared) as shared from trajectory_neurons
        group by operator, layer, neuron
    ),
    every as (
        select operator, layer, neuron, with_heuristic.neuron is not null as has_heuristic,
            coalesce(shared, false) as shared
        from operators cross join late left join with_heuristic using (operator, layer, neuron)
    ),
    shuffled as (  -- place_by_heuristic (for drawn) has heuristic neurons first
        select *,
            row_number() over (partition by operator, draw, layer
                order by has_heuristic desc, turn, neuron) as place_by_heuristic,
            row_number() over (partition by operator, draw, layer order by turn, neuron) as place
        from (
            select *, lot($knockout_seed, 'trajectory', draw, operator, layer, neuron) as turn
            from every, (select unnest(range($control_draws)) as draw)
        )
    ),
    choices as (
        select 'all' as kept, operator, null as draw, layer, neuron, has_heuristic as is_kept
        from every
        union all select 'shared', operator, null, layer, neuron, shared from every
        union all select 'nothing', operator, null, layer, neuron, false from every
        union all
        select 'drawn', operator, draw, layer, neuron,
            place_by_heuristic <= sum(shared::integer) over (partition by operator, draw, layer)
        from shuffled
        union all
        select 'random', operator, draw, layer, neuron,
            place <= sum(has_heuristic::integer) over (partition by operator, draw, layer)
        from shuffled
    ),
    kept as (
        select kept, operator, draw, layer,
            list(neuron::integer order by neuron) filter (not is_kept) as units,
            sum(count(*) filter (is_kept)) over (partition by kept, operator, draw) as neurons
        from choices group by kept, operator, draw, layer
    ),
    prompts as (select operator, pair from pairs where split = 'evaluation' and exists (from late)),
    own as (
        select operator, pair, layer, neuron, max(chance_corrected) as chance_corrected
        from trajectory_neurons
        join prompt_associations using (operator, heuristic)
        join prompts using (operator, pair)
        group by all
    ),
    ranked as (select *,
        row_number() over (partition by pair, layer order by chance_corrected desc, neuron) as place
        from own),
    others as (
        select operator, pair, layer, neuron,
            row_number() over (
                partition by pair, layer
                order by lot($prompt_knockout_seed, 'trajectory', pair, layer, neuron), neuron
            ) as place
        from with_heuristic join prompts using (operator) anti join own using (pair, layer, neuron)
    ),
    sizes as (select pair, layer, count(*) as size from own group by pair, layer),
    candidates as (
        select 'heuristic' as arm, operator, pair, layer, neuron, place from ranked
        union all
        select 'control', operator, pair, layer, neuron, place from others
        join sizes using (pair, layer) where place <= size
    ),
    ablated as (
        select arm, operator, pair, neurons_per_layer, layer,
            list(neuron::integer order by neuron) as units,
            sum(count(*)) over (partition by arm, pair, neurons_per_layer) as neurons
        from candidates join (select unnest($neurons_per_layer)::integer as neurons_per_layer)
            on place <= neurons_per_layer
        group by arm, operator, pair, neurons_per_layer, layer
    ),
    planned as (  -- every prompt, whether or not it has neurons to ablate
        select arm, operator, pair, neurons_per_layer
        from prompts, (select unnest(['heuristic', 'control']) as arm),
            (select unnest($neurons_per_layer)::integer as neurons_per_layer)
    ),
    patches as (
        select operator, null as pair, layer, units, kept, draw, null as arm,
            null as neurons_per_layer, neurons
        from kept
        union all
        select operator, null, null, null, 'everything', null, null, null, count(*) from every
        group by operator
        union all
        select operator, pair, layer, units, null, null, arm, neurons_per_layer,
            coalesce(neurons, 0)
        from planned left join ablated using (arm, operator, pair, neurons_per_layer)
    )
select
    $subject as subject,
    (dense_rank() over (
        order by operator, kept nulls last, draw nulls first, arm nulls first,
            neurons_per_layer nulls first, pair nulls first
    ) - 1)::integer as intervention,
    operator, 'evaluation' as split, pair::integer as pair,
    if(units is null, 'none', 'neuron') as component,
    if(units is null, null, layer)::smallint as layer, units,
    if(units is null, null, 'last') as position,
    null::varchar as key_position, if(kept is null, 'zero', 'mean') as replacement, kept,
    draw::integer as draw, arm,
    neurons_per_layer::integer as neurons_per_layer, neurons::integer as neurons
from patches
order by intervention, layer
