-- At a point of training, what its heuristic neurons carry: all of them alone, those shared with the last point alone, and prompt by
-- prompt without those of its own heuristics (Sec. 5, Fig. 10b and 10c). Only the last point's late layers are touched.
--
-- subject            VARCHAR    the model at this point
-- intervention       INTEGER    number of the intervention, from 0; one row per patch
-- operator           VARCHAR    whose heuristics, and prompts it is run on
-- split              VARCHAR    prompts it is run on: evaluation
-- pair               INTEGER    the one pair it is run on; null: all of the operator's
-- component          VARCHAR    neuron, or none where there is nothing to ablate
-- layer              SMALLINT   a late layer, from 0
-- units              INTEGER[]  the ablated neurons, from 0
-- position           VARCHAR    token position: last
-- key_position       VARCHAR    null, of edges only
-- replacement        VARCHAR    mean (pooled over operators) where neurons are kept and all others
--                               ablated, zero where a prompt's neurons are silenced
-- kept               VARCHAR    everything, nothing, all (neurons that stand for a heuristic), shared (those that stand for one they stand
--                               for at the last point), drawn (as many of all, in each layer, as are shared) or random (as many late
--                               neurons as all); null where a prompt's neurons are silenced
-- draw               INTEGER    of drawn and random, from 0; null otherwise
-- arm                VARCHAR    heuristic (the prompt's own, best first) or control (as many that stand for none of its own, random);
--                               null where neurons are kept
-- neurons_per_layer  INTEGER    neurons to be silenced in each late layer; fewer where there are no more; null where neurons are kept
-- neurons            INTEGER    late neurons that are kept, or silenced
with
    late as (select distinct layer, neuron from naming join late_layers on layer >= first_layer),
    operators as (select distinct operator from pairs),
    standing as (select operator, layer, neuron, bool_or(shared) as shared from trajectory_neurons group by operator, layer, neuron),
    every as (
        select operator, layer, neuron, standing.neuron is not null as stands, coalesce(shared, false) as shared
        from operators cross join late left join standing using (operator, layer, neuron)
    ),
    shuffled as (  -- heuristic neurons first for drawn, in any order for random
        select *,
            row_number() over (partition by operator, draw, layer order by stands desc, turn, neuron) as place_standing,
            row_number() over (partition by operator, draw, layer order by turn, neuron) as place
        from (
            select *, lot($knockout_seed, 'trajectory', draw, operator, layer, neuron) as turn
            from every, (select unnest(range($control_draws)) as draw)
        )
    ),
    staying as (
        select 'all' as kept, operator, null as draw, layer, neuron, stands as stays from every
        union all select 'shared', operator, null, layer, neuron, shared from every
        union all select 'nothing', operator, null, layer, neuron, false from every
        union all
        select 'drawn', operator, draw, layer, neuron, place_standing <= sum(shared::integer) over (partition by operator, draw, layer)
        from shuffled
        union all
        select 'random', operator, draw, layer, neuron, place <= sum(stands::integer) over (partition by operator, draw, layer)
        from shuffled
    ),
    kept as (
        select kept, operator, draw, layer, list(neuron::integer order by neuron) filter (not stays) as units,
            sum(count(*) filter (stays)) over (partition by kept, operator, draw) as neurons
        from staying group by kept, operator, draw, layer
    ),
    prompts as (select operator, pair from pairs where split = 'evaluation' and exists (from late)),
    own as (
        select operator, pair, layer, neuron, max(corrected) as corrected
        from trajectory_neurons
        join prompt_associations using (operator, heuristic)
        join prompts using (operator, pair)
        group by all
    ),
    ranked as (select *, row_number() over (partition by pair, layer order by corrected desc, neuron) as place from own),
    others as (
        select operator, pair, layer, neuron,
            row_number() over (
                partition by pair, layer
                order by lot($prompt_knockout_seed, 'trajectory', pair, layer, neuron), neuron
            ) as place
        from standing join prompts using (operator) anti join own using (pair, layer, neuron)
    ),
    sizes as (select pair, layer, count(*) as size from own group by pair, layer),
    chosen as (
        select 'heuristic' as arm, operator, pair, layer, neuron, place from ranked
        union all
        select 'control', operator, pair, layer, neuron, place from others join sizes using (pair, layer) where place <= size
    ),
    silenced as (
        select arm, operator, pair, neurons_per_layer, layer, list(neuron::integer order by neuron) as units,
            sum(count(*)) over (partition by arm, pair, neurons_per_layer) as neurons
        from chosen join (select unnest($neurons_per_layer)::integer as neurons_per_layer) on place <= neurons_per_layer
        group by arm, operator, pair, neurons_per_layer, layer
    ),
    asked as (  -- every prompt, whether or not it has neurons to silence
        select arm, operator, pair, neurons_per_layer
        from prompts, (select unnest(['heuristic', 'control']) as arm), (select unnest($neurons_per_layer)::integer as neurons_per_layer)
    ),
    patches as (
        select operator, null as pair, layer, units, kept, draw, null as arm, null as neurons_per_layer, neurons from kept
        union all
        select operator, null, null, null, 'everything', null, null, null, count(*) from every group by operator
        union all
        select operator, pair, layer, units, null, null, arm, neurons_per_layer, coalesce(neurons, 0)
        from asked left join silenced using (arm, operator, pair, neurons_per_layer)
    )
select
    $subject as subject,
    (dense_rank() over (
        order by operator, kept nulls last, draw nulls first, arm nulls first, neurons_per_layer nulls first, pair nulls first
    ) - 1)::integer as intervention,
    operator, 'evaluation' as split, pair::integer as pair, if(units is null, 'none', 'neuron') as component,
    if(units is null, null, layer)::smallint as layer, units, if(units is null, null, 'last') as position,
    null::varchar as key_position, if(kept is null, 'zero', 'mean') as replacement, kept, draw::integer as draw, arm,
    neurons_per_layer::integer as neurons_per_layer, neurons::integer as neurons
from patches
order by intervention, layer
