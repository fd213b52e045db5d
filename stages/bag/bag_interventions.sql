-- Keep only the heuristic neurons of the late layers at the last position, or only the other
-- neurons. The controls of both are random neurons, and other neurons of the nearest variance.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    operator whose heuristic neurons are meant, and whose prompts it is run
--                          on
-- split         VARCHAR    split of the prompts that it is run on: evaluation
-- component     VARCHAR    component that is ablated: neuron, or none where everything is kept
-- layer         SMALLINT   late layer of the ablated neurons, from 0
-- units         INTEGER[]  the ablated neurons of the layer's MLP, from 0
-- position      VARCHAR    token position of the patch: last
-- key_position  VARCHAR    always null; only attention edges have a key position
-- replacement   VARCHAR    value that ablated neurons take: mean (over all prompts, pooled over
--                          operators with equal weight) or zero
-- kept          VARCHAR    late neurons that are kept: heuristic (those that have some heuristic),
--                          rest (all others), random (as many random neurons of each layer as
--                          heuristic), random_rest (all but these random neurons), matched (as many
--                          neurons without a heuristic of each layer, of the nearest variance, as
--                          in matched_neurons; fewer if more than half of a layer has a
--                          heuristic), matched_rest (all but these matched neurons), everything or
--                          nothing
-- criterion     VARCHAR    criterion by which neurons have heuristics, as in heuristic_neurons:
--                          label, fdr or threshold; null for everything and nothing
-- draw          INTEGER    number of the random draw, from 0; null unless kept is random or
--                          random_rest
-- neurons       INTEGER    number of late neurons that are kept
with
    late as (
        -- neurons that the activation store holds
        select distinct layer, neuron from naming join late_layers on layer >= first_layer
    ),
    operators as (select distinct operator from pairs),
    bags as (select distinct operator, criterion, layer, neuron from heuristic_neurons where late),
    partners as (
        select operator, criterion, layer, matched as neuron
        from matched_neurons where arm = 'heuristic' and matched is not null
    ),
    every as (
        select operator, criterion, layer, neuron, bags.neuron is not null as heuristic,
            partners.neuron is not null as matched
        from (select distinct operator, criterion from bags) cross join late
        left join bags using (operator, criterion, layer, neuron)
        left join partners using (operator, criterion, layer, neuron)
    ),
    shuffled as (
        select *, row_number() over (
                partition by operator, criterion, draw, layer
                order by lot($knockout_seed, 'bag', draw, operator, layer, neuron), neuron
            ) as place
        from every, (select unnest(range($control_draws)) as draw)
    ),
    drawn as (
        select *,
            place <= sum(heuristic::integer) over (partition by operator, criterion, draw, layer)
            as is_drawn
        from shuffled
    ),
    marked as (
        select 'heuristic' as kept, operator, criterion, null as draw, layer, neuron,
            heuristic as stays
        from every
        union all select 'rest', operator, criterion, null, layer, neuron, not heuristic from every
        union all
        select 'matched', operator, criterion, null, layer, neuron, matched from every
        union all
        select 'matched_rest', operator, criterion, null, layer, neuron, not matched from every
        union all
        select 'random', operator, criterion, draw, layer, neuron, is_drawn from drawn
        union all
        select 'random_rest', operator, criterion, draw, layer, neuron, not is_drawn from drawn
        union all select 'nothing', operator, null, null, layer, neuron, false from operators, late
    ),
    ablated as (
        select kept, operator, criterion, draw, layer,
            list(neuron::integer order by neuron) filter (not stays) as units,
            count(*) filter (stays) as staying
        from marked group by kept, operator, criterion, draw, layer
    ),
    counted as (select *,
        sum(staying) over (partition by kept, operator, criterion, draw) as neurons from ablated),
    patches as (
        select kept, operator, criterion, draw, layer, units, neurons,
            unnest(['mean', 'zero']) as replacement
        from counted
        union all
        select 'everything', operator, null, null, null, null, count(*), unnest(['mean', 'zero'])
        from operators, late group by operator
    )
select
    $subject as subject,
    (dense_rank() over (order by operator, kept, criterion nulls first, draw nulls first,
        replacement) - 1)::integer as intervention,
    operator, 'evaluation' as split, if(units is null, 'none', 'neuron') as component,
    if(units is null, null, layer)::smallint as layer, units,
    if(units is null, null, 'last') as position,
    null::varchar as key_position, replacement, kept, criterion, draw::integer as draw,
    neurons::integer as neurons
from patches
order by intervention, layer
